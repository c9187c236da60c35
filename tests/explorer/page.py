"""What explorations gave, as the tables of docs/reference/exploration.md; rows that were not tried again stay."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.explorer.bugs import BUGS
from tests.explorer.defects import Finding, Record, explored_guards, is_out_of_reach, planted_bugs
from tests.explorer.exploration import Explored
from tests.guards.guard import GUARDS

NOT_REACHED = "none gets there"
MISSED = "missed"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exploration.md"


def write_scenarios(results: Iterable[Explored]) -> None:
    """Put what was explored into the page."""
    write_table(PAGE, "scenarios", 2, [_row(explored) for explored in results])


def write_defects(kind: str, record: Record) -> None:
    """Put what was found of bugs or guards into the page: one after another, what a record has as it is now."""
    if kind == "bugs":
        tests = {bug.name: f"missed; `{bug.test}` finds it" for bug in BUGS if bug.test}
        rows = [
            _finding(bug.name, record.findings[bug.key], tests.get(bug.name, MISSED))
            for bug in planted_bugs()
            if record.has(bug)
        ]
        write_table(PAGE, "bugs", None, rows)
        return
    known = {guard.name: guard for guard in GUARDS}
    findings = [(known[one.name], record.findings[one.key]) for one in explored_guards() if record.has(one)]
    write_table(PAGE, "guards", None, [_finding(guard.holds, one) for guard, one in findings if one.broken])
    missed = [
        (
            guard.holds,
            f"`{guard.where}`",
            str(one.schedules) if one.schedules else NOT_REACHED,
            f"`{guard.test}`",
        )
        for guard, one in findings
        if not one.broken
    ]
    write_table(PAGE, "missed", None, missed)
    beyond = Counter(guard.path for guard in GUARDS if is_out_of_reach(guard))
    write_table(PAGE, "beyond", None, [(f"`{path}`", str(count)) for path, count in sorted(beyond.items())])


def _finding(name: str, finding: Finding, missed: str = MISSED) -> tuple[str, ...]:
    found = (finding.scenario, finding.broken) if finding.broken else ("", missed)
    return tuple(cell.replace("|", "\\|").replace("\n", " ")[:160] for cell in (name, str(finding.schedules), *found))


def _row(explored: Explored) -> list[str]:
    counts = (explored.states, explored.calls, explored.ends, explored.runs, *explored.struck.values())
    each = [f"{count:,}" for count in counts]
    return [explored.scenario, str(explored.faults), f"{each[0]}{'' if explored.whole else ', not all'}", *each[1:]]


def write_table(path: Path, table: str, key: int | None, rows: Iterable[Sequence[str]]) -> None:
    """Replace a page's table; with a `key` only the rows that have the same first cells, and add the others."""
    page = path.read_text(encoding="utf-8")
    match = re.search(rf"<!-- {table} -->\n\n((?:\|.*\n){{2}})((?:\|.*\n)*)", page)
    if match is None:
        raise ValueError(f"{path} has no table of {table}")
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if key is not None:
        latest = {tuple(line.split(" | ")[:key]): line for line in [*match[2].splitlines(), *lines]}
        lines = list(latest.values())
    new = "".join(f"{line}\n" for line in lines)
    path.write_text(page[: match.start(2)] + new + page[match.end(2) :], encoding="utf-8")

"""What explorations gave, as the tables of docs/reference/exploration.md; rows that were not tried again stay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.explorer.exploration import Explored

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exploration.md"


def write_scenarios(results: Iterable[Explored]) -> None:
    """Put what was explored into the page."""
    write_table(PAGE, "scenarios", 2, [_row(explored) for explored in results])


def write_bugs(rows: Iterable[Sequence[str]]) -> None:
    """Put bugs and guards into the page, each with the states until it was found, and what broke where."""
    write_table(PAGE, "bugs", 1, [[cell.replace("|", "\\|") for cell in row] for row in rows])


def _row(explored: Explored) -> list[str]:
    counts = (explored.states, explored.calls, explored.ends, explored.runs, *explored.struck.values())
    each = [f"{count:,}" for count in counts]
    return [explored.scenario, str(explored.faults), f"{each[0]}{'' if explored.whole else ', not all'}", *each[1:]]


def write_table(path: Path, table: str, key: int, rows: Iterable[Sequence[str]]) -> None:
    """Replace the rows of a page's table that have the same first cells, and add the others."""
    page = path.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {table} -->\n\n((?:\|.*\n){{2}})((?:\|.*\n)*)", page)
    if found is None:
        raise ValueError(f"{path} has no table of {table}")
    lines = [*found[2].splitlines(), *(f"| {' | '.join(row)} |" for row in rows)]
    latest = {tuple(line.split(" | ")[:key]): line for line in lines}
    new = "".join(f"{line}\n" for line in latest.values())
    path.write_text(page[: found.start(2)] + new + page[found.end(2) :], encoding="utf-8")

"""The results as a table: a row for each trial, a column for each system."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.conformance.system import NAMES, System, load_system
from tests.conformance.trials import TRIALS, Result

PAGE = Path("docs/comparison.md")
BEGIN, END = "<!-- conformance -->\n", "<!-- end of conformance -->\n"
SOUND, NOT_RUN = "sound", "not run"
Cells = dict[tuple[str, str], str]


def cell(result: Result) -> str:
    """Return what a table says of a result: the defects, or that there are none."""
    if result.note:
        return "failed"
    if result.struck == 0:
        return "never struck"
    return ", ".join(f"{count:,} {name}" for name, count in result.counts.items() if count) or SOUND


def markdown(systems: Sequence[System], results: Sequence[Result]) -> str:
    """Return the table of some systems."""
    titles = {system.name: system.title for system in systems}
    return _table({(result.trial, titles[result.system]): cell(result) for result in results}, list(titles.values()))


def write(systems: Sequence[System], results: Sequence[Result], page: Path = PAGE) -> None:
    """Put results between the markers of a page; what was not run this time stays there."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page} has no place for the table")
    titles = {system.name: system.title for system in [*map(load_system, NAMES), *systems]}
    cells = _read(table) | {(result.trial, titles[result.system]): cell(result) for result in results}
    known = [title for title in titles.values() if any(title == named for _, named in cells)]
    page.write_text(f"{before}{BEGIN}\n{_table(cells, known)}\n{END}{after}", encoding="utf-8")


def _table(cells: Cells, titles: Sequence[str]) -> str:
    trials = [trial for trial in TRIALS if any(trial == named for named, _ in cells)]
    head = ["trial", *titles]
    rows = [[trial, *(cells.get((trial, title), NOT_RUN) for title in titles)] for trial in trials]
    return "".join(map(_line, [head, ["---"] * len(head), *rows]))


def _read(table: str) -> Cells:
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    (_, *titles), _, *rest = rows or [[""], []]
    return {(trial, title): word for trial, *words in rest for title, word in zip(titles, words, strict=True)}


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"

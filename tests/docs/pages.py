"""The pages of the documentation and their code blocks.

What a block needs to be told stands in HTML comments right before it, which readers of a page do not see:

    <!-- not run: REASON -->       it cannot be run here, and why
    <!-- file: NAME -->            it is the content of this file
    <!-- given: PYTHON -->         python: what is done before it, for names that the reader has already
    <!-- prints: TEXT -->          its output has this line; `...` stands for anything
    <!-- prints once: TEXT -->     the same; run a second time, it prints nothing
    <!-- ends with: STATUS -->     its last command ends with this exit status, instead of 0
    <!-- output of: COMMAND -->    json: every field of it is one that the command prints
    <!-- output -->                text: what the block before it printed, line by line; `...` stands for anything
    <!-- result -->                a table: what the query before it gives (make reference writes it)
    <!-- result, but for: NAMES -->  the same; these columns differ from run to run and are left out

A page says once, anywhere:

    <!-- begins with: WORLD -->                 what its working directory holds at its beginning (worlds.py)
    <!-- run by tests/FILE.py: LANGUAGES -->    its blocks of these languages are run there
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
REMARKS = {"not run", "file", "given", "prints", "prints once", "ends with", "output of", "output"}

FENCE = re.compile(r" *(```+|~~~+) *([\w+-]*)(.*)")
REMARK = re.compile(r"<!-- *([a-z ]+?)(?:: *(.*?))? *-->")
RESULT = re.compile(r"<!-- result(?:, but for: (.*?))? -->")
WORLD = re.compile(r"^<!-- begins with: (\w+) -->$", re.MULTILINE)
ELSEWHERE = re.compile(r"^<!-- run by (tests/[\w/]+\.py): (.*) -->$", re.MULTILINE)
SPARK = {"sql": "", "python": r"\bspark\b", "console": r"--engine spark"}


@dataclass(frozen=True, slots=True)
class Table:
    """The table that shows the result of a query: its place in the page, its lines, the columns that it leaves out."""

    start: int
    end: int
    lines: tuple[str, ...]
    varying: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: the line it begins in, its language (empty without), its text, what was remarked before it."""

    page: str
    line: int
    language: str
    text: str
    remarks: dict[str, str] = field(default_factory=dict)
    result: Table | None = None

    @property
    def place(self) -> str:
        """Return where it stands."""
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Tell whether it is run."""
        return "not run" not in self.remarks

    @property
    def needs_spark(self) -> bool:
        """Tell whether it needs a Spark session."""
        pattern = SPARK.get(self.language)
        return pattern is not None and self.is_run and bool(re.search(pattern, self.text))


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path from the root, its text."""

    path: str
    text: str

    @property
    def world(self) -> str:
        """Return what its working directory holds at its beginning."""
        declared: list[str] = WORLD.findall(self.text)
        assert len(declared) < 2, f"{self.path} begins with more than one thing"
        return declared[0] if declared else "messages"

    @property
    def elsewhere(self) -> dict[str, str]:
        """Return the languages whose blocks are run by a test of their own, and the file of it."""
        return {
            language: file for file, languages in ELSEWHERE.findall(self.text) for language in languages.split(", ")
        }

    @property
    def every_block(self) -> list[Block]:
        """Return its code blocks, in their order."""
        return list(_blocks(self.path, self.text.splitlines()))

    @property
    def blocks(self) -> list[Block]:
        """Return the blocks that are not run elsewhere."""
        return [block for block in self.every_block if block.language not in self.elsewhere]


def pages() -> list[Page]:
    """Return the README and every page below docs/."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [Page(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in files]


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    at = 0
    while at < len(lines):
        fence = FENCE.fullmatch(lines[at])
        if fence:
            end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == fence[1]), None)
            assert end is not None, f"{page}:{at + 1}: the block has no end"
            text = textwrap.dedent("\n".join(lines[at + 1 : end])) + "\n"
            yield Block(page, at + 1, fence[2] + fence[3], text, _remarks(page, lines, at), _result(lines, end + 1))
            at = end
        at += 1


def _remarks(page: str, lines: list[str], fence: int) -> dict[str, str]:
    """Return the remarks in the lines right above a fence."""
    remarks: dict[str, str] = {}
    at = fence - 1
    while at >= 0 and (remark := REMARK.fullmatch(lines[at].strip())):
        if remark[1] != "begins with":
            assert remark[1] in REMARKS, f"{page}:{at + 1}: nobody knows the remark {remark[1]!r}"
            remarks[remark[1]] = remark[2] or ""
        at -= 1
    return remarks


def _result(lines: list[str], at: int) -> Table | None:
    """Return the table after a `result` remark, if the next thing behind a block is one."""
    here = next((n for n in range(at, len(lines)) if lines[n].strip()), None)
    remark = None if here is None else RESULT.fullmatch(lines[here].strip())
    if here is None or remark is None:
        return None
    start = here + 1
    first = start + (lines[start : start + 1] == [""])
    rows = tuple(takewhile(lambda line: line.startswith("|"), lines[first:]))
    return Table(start, first + len(rows) if rows else start, rows, tuple((remark[1] or "").split(", ")))

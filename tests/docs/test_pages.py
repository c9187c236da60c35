"""The pages about errors and faults against the code and the tests that they speak of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from windrow import errors
from windrow.errors import ConcurrentCommitError, LedgerBehindError, UsageError, WindrowError

ROOT = Path(__file__).parents[2]
FAULTS = "tests/faults/"
OUTSIDE_THE_TREE = {"WINDROW-USAGE": "2", "WINDROW-UNEXPECTED": "3"}  # said by the command line itself
TEST = re.compile(r"`((?:\w+/)*test_\w+\.py(?:::\w+)+)`")


def cells(page: str, columns: int) -> list[list[str]]:
    """Return the rows of a page's tables that have so many columns, without their heads."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    stripped = [[cell.strip() for cell in row] for row in rows if len(row) == columns]
    return [row for at, row in enumerate(stripped) if not set(row[0]) <= {"-"} and not _is_head(stripped, at)]


def _is_head(rows: list[list[str]], at: int) -> bool:
    return at + 1 < len(rows) and set(rows[at + 1][0]) <= {"-"} and bool(rows[at + 1][0])


def tree(kind: type[WindrowError] = WindrowError) -> Iterator[type[WindrowError]]:
    """Return all classes of errors that have a code of their own."""
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__ and "code" in vars(child):
            yield child
        yield from tree(child)


class TestErrors:
    def test_each_code_once(self) -> None:
        """Every code of the tree of errors has exactly one line, and no line has a code that nobody raises."""
        listed = [row[0].strip("`") for row in cells("errors.md", 6)]
        assert sorted(listed) == sorted([*(kind.code for kind in tree()), *OUTSIDE_THE_TREE])

    def test_status_and_retries(self) -> None:
        """The page says of each code the exit status that the command line gives, and whether a run tries again."""
        documented = {row[0].strip("`"): (row[4], row[5]) for row in cells("errors.md", 6)}
        for kind in tree():
            again = kind.retryable or kind in (ConcurrentCommitError, LedgerBehindError)
            assert documented[kind.code] == ("2" if issubclass(kind, UsageError) else "3", "yes" if again else "no")
        assert {code: documented[code][0] for code in OUTSIDE_THE_TREE} == OUTSIDE_THE_TREE

    def test_every_cell_is_filled(self) -> None:
        """Each line says what the code means, what causes it and what to do."""
        assert all(all(row) for row in cells("errors.md", 6))

    def test_docstring_draws_the_tree(self) -> None:
        """The tree in the module's docstring has every class with its code."""
        drawn = dict(re.findall(r"(\w+) +(WINDROW-[A-Z-]+)$", errors.__doc__ or "", re.MULTILINE))
        assert drawn == {kind.__name__: kind.code for kind in tree()}


class TestFaults:
    def test_every_row_names_tests_that_exist(self) -> None:
        """Each row of the table of faults says what the user sees and what happens to the data, and names a test."""
        rows = cells("faults.md", 4)
        assert len(rows) > 40
        known = known_tests("tests")
        for row in rows:
            named = TEST.findall(row[3])
            assert all(row), row[0]
            assert named, f"{row[0]} has no test"
            for name in named:
                assert f"tests/{name}" in known, name

    def test_every_test_of_a_fault_has_a_row(self) -> None:
        """No fault is tested that the table does not tell."""
        named = {f"tests/{name}" for row in cells("faults.md", 4) for name in TEST.findall(row[3])}
        assert {name for name in known_tests("tests") if name.startswith(FAULTS)} - named == set()

    def test_codes_are_known(self) -> None:
        """A code that the table names is one that the page of errors explains."""
        page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
        explained = {row[0].strip("`") for row in cells("errors.md", 6)}
        assert set(re.findall(r"WINDROW-[A-Z-]+[A-Z]", page)) <= explained


def known_tests(directory: str) -> set[str]:
    """Return the names of all tests below a directory: `path::Class::test` or `path::test`."""
    return {
        f"{file.relative_to(ROOT)}::{name}" for file in (ROOT / directory).rglob("test_*.py") for name in names(file)
    }


def names(file: Path) -> Iterator[str]:
    """Return the tests of a file."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{inner.name}" for inner in node.body if _is_test(inner))


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


def test_readme_repeats_what_was_measured() -> None:
    """The README's table has the numbers of the page that compares: Spark's `window`, then Windrow."""
    measured = {row[0].strip("* "): row for row in reversed(cells("comparison.md", 8))}
    rows = cells("../README.md", 3)
    assert len(rows) == 5
    for what, of_spark, of_windrow in rows:
        row = measured.get(what) or measured[what.removeprefix("messages ")]
        assert [of_spark, of_windrow.strip("*")] == [row[3].strip("*"), row[1].strip("*")], what


def test_pages_are_linked() -> None:
    """The README leads to both pages."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"docs/{page}" in readme for page in ("errors.md", "faults.md"))

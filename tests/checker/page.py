"""What the checker found, as the tables of docs/reference/model.md; rows that were not checked again stay."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.checker.checker import CheckResult
from tests.explorer.page import write_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model.md"


def write_runs(results: Iterable[CheckResult]) -> None:
    """Put the runs without bugs into the page."""
    rows = [[one.name, one.bounds, f"{one.states:,}", f"{one.seconds:,}", one.broken or "all hold"] for one in results]
    write_table(PAGE, "runs", 1, rows)


def write_bugs(results: Iterable[CheckResult]) -> None:
    """Put the bugs into the page, each with the property that broke."""
    rows = [[one.name, f"{one.states:,}", str(one.steps or ""), one.broken or "not found"] for one in results]
    write_table(PAGE, "bugs", 1, rows)

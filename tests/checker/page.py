"""What the checker found, as the tables of docs/reference/model.md; rows that were not checked again stay."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.checker.checker import CheckResult
from tests.explorer.page import write_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model.md"


def write_runs(results: Iterable[CheckResult]) -> None:
    """Put the runs without bugs into the page."""
    rows = [
        [result.name, result.bounds, f"{result.states:,}", f"{result.seconds:,}", result.broken or "all hold"]
        for result in results
    ]
    write_table(PAGE, "runs", 1, rows)


def write_bugs(results: Iterable[CheckResult]) -> None:
    """Put the bugs into the page, each with the property that broke."""
    rows = [
        [result.name, f"{result.states:,}", str(result.steps or ""), result.broken or "not found"] for result in results
    ]
    write_table(PAGE, "bugs", 1, rows)

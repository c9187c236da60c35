from __future__ import annotations

from typing import Any

import pytest

from windrow.model.commits import rows_added, rows_in_files

SPARK, DELTA_RS = "numOutputRows", "num_added_rows"


@pytest.mark.parametrize("counted", [SPARK, DELTA_RS])
@pytest.mark.parametrize("operation", ["WRITE", "STREAMING UPDATE", "CREATE TABLE AS SELECT", "COPY INTO"])
def test_appends(operation: str, counted: str) -> None:
    """An append says how many rows it added, in the words of Spark or of delta-rs, as a number or as text."""
    assert rows_added({"operation": operation, "operationMetrics": {counted: "12"}}) == 12
    assert rows_added({"operation": operation, "operationMetrics": {counted: 0}}) == 0


@pytest.mark.parametrize("removed", ["numRemovedFiles", "num_removed_files"])
def test_overwritten_with_nothing(removed: str) -> None:
    """A write of no rows that removed files may have changed rows: it does not say how many it added."""
    assert rows_added({"operation": "WRITE", "operationMetrics": {SPARK: "0", removed: "1"}}) is None
    assert rows_added({"operation": "WRITE", "operationMetrics": {SPARK: "0", removed: "0"}}) == 0
    assert rows_added({"operation": "WRITE", "operationMetrics": {SPARK: "3", removed: "1"}}) == 3


@pytest.mark.parametrize("operation", ["OPTIMIZE", "CREATE TABLE", "SET TBLPROPERTIES", "VACUUM START", "VACUUM END"])
def test_without_rows(operation: str) -> None:
    """TableMaintenance of a table adds no rows, whatever it counts."""
    assert rows_added({"operation": operation, "operationMetrics": {SPARK: "5"}}) == 0


@pytest.mark.parametrize(
    "commit",
    [
        {},
        {"operation": "WRITE"},
        {"operation": "WRITE", "operationMetrics": None},
        {"operation": "WRITE", "operationMetrics": {"numFiles": "1"}},
        {"operation": "MERGE", "operationMetrics": {SPARK: "5"}},
        {"operation": None, "operationMetrics": {SPARK: "5"}},
    ],
)
def test_what_is_not_said(commit: dict[str, Any]) -> None:
    """Anything else does not say how many rows it added; then its files count, if somebody looked at them."""
    assert rows_added(commit) is None
    assert rows_added(commit | {"rows_in_files": 7}) == 7


@pytest.mark.parametrize(
    ("files", "removed", "operation", "count"),
    [
        ([{"stats": '{"numRecords": 2}'}, {"stats": '{"numRecords": 3}', "dataChange": True}], False, "WRITE", 5),
        ([{"stats": '{"numRecords": 2}'}], False, None, 2),
        ([], False, None, 0),
        ([{"stats": '{"numRecords": 2}', "dataChange": False}], False, None, 0),
        ([{"stats": '{"numRecords": 2}'}, {"stats": None}], False, None, None),
        ([{"stats": '{"numRecords": 2}'}, {"stats": "{}"}], False, None, None),
        ([{"stats": "2"}], False, None, None),
        ([{"stats": "{"}], False, None, None),
        ([{"stats": '{"numRecords": "2"}'}], False, None, None),
        ([{"stats": '{"numRecords": 2}', "deletionVector": {"cardinality": 1}}], False, None, None),
        ([{"stats": '{"numRecords": 2}'}], True, "MERGE", None),
        ([{"stats": '{"numRecords": 2}'}], False, "RESTORE", None),
    ],
)
def test_of_files(files: list[dict[str, Any]], removed: bool, operation: str | None, count: int | None) -> None:
    """The files that a commit only added count its rows, if all of them say how many they have."""
    assert rows_in_files(operation, files, removed) == count

"""What the log of a table says of its commits."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from windrow.storage import OPENED, history, seen_table


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table of which every commit says its own version."""
    for version in range(3):
        append(str(tmp_path), version)
    return str(tmp_path)


def append(table: str, version: int) -> None:
    """Add a commit that says which version it is."""
    noted = CommitProperties(custom_metadata={"says": str(version)})
    write_deltalake(table, pa.table({"n": [version]}), mode="append", commit_properties=noted)


class TestHistory:
    def test_commits_since_the_table_was_opened(self, table: str) -> None:
        """
        Commits that came after the table was opened are not among them, and none has the number of another.
        Holds against counting back from the version of the handle: what the depot's log says of a version, such as
        that it brought no rows, would be said of the one before, whose messages would be passed over.
        """
        opened = DeltaTable(table)
        append(table, 3)
        append(table, 4)
        assert [(commit["version"], commit["says"]) for commit in history(opened)] == [(2, "2"), (1, "1"), (0, "0")]
        assert [commit["version"] for commit in history(opened, 2)] == [2]

    def test_a_log_that_was_cleaned_up(self, table: str) -> None:
        """
        Where the log begins later, so do the commits.
        """
        DeltaTable(table).create_checkpoint()
        Path(table, "_delta_log", f"{0:020}.json").unlink()
        assert [commit["version"] for commit in history(DeltaTable(table))] == [2, 1]

    def test_a_commit_that_says_nothing(self, table: str) -> None:
        """
        A commit without a word of what it did keeps its number, and the others theirs.
        """
        file = Path(table, "_delta_log", f"{1:020}.json")
        lines = [line for line in file.read_text().splitlines() if '"commitInfo"' not in line]
        file.write_text("\n".join(lines) + "\n")
        found = list(history(DeltaTable(table)))
        assert [(commit["version"], commit.get("says")) for commit in found] == [(2, "2"), (1, None), (0, "0")]
        assert found[1]["timestamp"] == file.stat().st_mtime_ns // 1_000_000

    def test_what_is_said(self, table: str) -> None:
        """
        On a table at rest it is what delta-rs tells as well.
        """
        told = DeltaTable(table).history()
        names = ("version", "timestamp", "operation", "operationMetrics", "engineInfo", "txnId")
        for ours, theirs in zip(history(DeltaTable(table)), told, strict=True):
            assert {name: ours.get(name) for name in names} == {name: theirs.get(name) for name in names}


class TestShared:
    def test_the_same_until_it_changes(self, table: str) -> None:
        """
        Whoever asks for a table gets the same object, until a commit of anybody moves it on.
        """
        first = seen_table(table, "depot")
        assert seen_table(table, "depot") is first
        append(table, 3)
        assert seen_table(table, "depot").version() == 3
        assert first.version() == 2

    def test_another_table_in_its_place(self, table: str, tmp_path_factory: pytest.TempPathFactory) -> None:
        """
        A table that was made anew, or brought back from a copy, with as many versions as before is not the one before.
        """
        seen_table(table, "depot")
        other = tmp_path_factory.mktemp("other")
        for version in (7, 8, 9):
            append(str(other), version)
        shutil.rmtree(table)
        shutil.copytree(other, table)
        assert seen_table(table, "depot").metadata().id == DeltaTable(table).metadata().id

    def test_forgotten(self, table: str) -> None:
        """
        A table that was forgotten is opened anew, though nothing tells that it changed.
        """
        first = seen_table(table, "depot")
        OPENED.forget(table)
        assert seen_table(table, "depot") is not first

    def test_a_log_put_back(self, table: str) -> None:
        """
        A table whose last commits were taken away is opened at the version that is left.
        """
        seen_table(table, "depot")
        (Path(table) / "_delta_log" / f"{2:020}.json").unlink()
        assert seen_table(table, "depot").version() == 1

"""What the log of a table says of its commits, and tables that are followed by it."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, TableFeatures, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from windrow import entries, storage
from windrow.errors import TableUnreadable
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


class TestSeen:
    def test_the_same_until_it_changes(self, table: str) -> None:
        """
        Whoever asks for a table gets the same object, until a commit of anybody moves it on; who has it keeps it as it
        was.
        """
        first = seen_table(table, "depot")
        assert seen_table(table, "depot") is first
        append(table, 3)
        assert seen_table(table, "depot").version == 3
        assert first.version == 2

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
        assert seen_table(table, "depot").table.metadata().id == DeltaTable(table).metadata().id

    def test_another_table_that_has_grown(self, table: str, tmp_path_factory: pytest.TempPathFactory) -> None:
        """
        Nor is one with more versions taken for what came to the one before.
        """
        seen_table(table, "depot")
        other = tmp_path_factory.mktemp("other")
        for version in (7, 8, 9, 10):
            append(str(other), version)
        shutil.rmtree(table)
        shutil.copytree(other, table)
        found = seen_table(table, "depot")
        assert (found.table.metadata().id, found.since) == (DeltaTable(table).metadata().id, ())

    def test_doubted(self, table: str) -> None:
        """
        A table is opened anew when what was tried with it failed, though nothing tells that it changed.
        """
        first = seen_table(table, "depot")
        with OPENED.doubted(table):
            pass
        assert seen_table(table, "depot") is first
        with suppress(RuntimeError), OPENED.doubted(table):
            raise RuntimeError
        assert seen_table(table, "depot") is not first

    def test_a_log_put_back(self, table: str) -> None:
        """
        A table whose last commits were taken away is opened at the version that is left.
        """
        seen_table(table, "depot")
        (Path(table) / "_delta_log" / f"{2:020}.json").unlink()
        assert seen_table(table, "depot").version == 1


class TestFollowed:
    def test_not_opened_again(self, table: str) -> None:
        """
        What comes to a table is read from its log, entry by entry: appends, a compaction; a checkpoint changes nothing
        of that.
        """
        first = seen_table(table, "depot")
        append(table, 3)
        DeltaTable(table).optimize.compact()
        DeltaTable(table).create_checkpoint()
        append(table, 5)
        found = seen_table(table, "depot")
        assert found.table is first.table
        assert [entry.version for entry in found.since] == [3, 4, 5]
        assert found.version == DeltaTable(table).version()

    @pytest.mark.parametrize(
        "changed",
        [
            lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
            lambda table: table.restore(1),
            lambda table: table.alter.add_columns([Field("more", PrimitiveType("string"))]),
            lambda table: table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True),
        ],
        ids=["properties", "restore", "columns", "protocol"],
    )
    def test_more_than_files(self, table: str, changed: Callable[[DeltaTable], None]) -> None:
        """
        A table of which more changed than its files is opened anew, and is what it is now.
        """
        first = seen_table(table, "depot")
        changed(DeltaTable(table))
        found = seen_table(table, "depot")
        assert found.table is not first.table
        assert (found.version, found.since) == (3, ())

    def test_a_log_cleaned_up_behind_it(self, table: str) -> None:
        """
        Where the entry that was seen last is gone, though the table has grown, it is opened anew at its checkpoint.
        """
        seen_table(table, "depot")
        append(table, 3)
        DeltaTable(table).create_checkpoint()
        for version in range(3):
            Path(table, "_delta_log", f"{version:020}.json").unlink()
        found = seen_table(table, "depot")
        assert (found.version, found.since) == (3, ())

    @pytest.mark.parametrize("content", ["", '{"add": {"pa', "[]"])
    def test_an_entry_that_is_none(self, table: str, content: str) -> None:
        """
        A file that is no entry is left to delta-rs, which says what is the matter with the table.
        """
        seen_table(table, "depot")
        Path(table, "_delta_log", f"{3:020}.json").write_text(content)
        with suppress(TableUnreadable):
            assert seen_table(table, "depot").since == ()

    def test_large_entries_and_many(self, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        Entries that are large, or more than a number, are not kept: the table is opened anew.
        """
        monkeypatch.setattr(storage, "MOST_FOLLOWED", 2)
        first = seen_table(table, "depot")
        for version in (3, 4):
            append(table, version)
        assert seen_table(table, "depot").table is first.table
        append(table, 5)
        assert seen_table(table, "depot").since == ()
        monkeypatch.setattr(entries, "LARGEST", 100)
        append(table, 6)
        assert seen_table(table, "depot").since == ()

    def test_numbers_of_applications(self, table: str) -> None:
        """
        The number of an application is the last one that the log has, in what came since or in what was there before.
        """
        numbered(table, "p", 7)
        seen_table(table, "depot")
        assert seen_table(table, "depot").transaction("p") == 7
        numbered(table, "p", 8)
        numbered(table, "q", 1)
        append(table, 6)
        found = seen_table(table, "depot")
        assert len(found.since) == 3
        assert [found.transaction(name) for name in ("p", "q", "r")] == [8, 1, None]

    def test_history(self, table: str) -> None:
        """
        What the log says of commits reaches over what came since and what was there before, each under its version.
        """
        first = seen_table(table, "depot")
        append(table, 3)
        found = seen_table(table, "depot").history(1)
        assert [(commit["version"], commit["says"]) for commit in found] == [(3, "3"), (2, "2"), (1, "1")]
        assert [commit["version"] for commit in first.history()] == [2, 1, 0]


def numbered(table: str, application: str, version: int) -> None:
    """Add a commit with the number of an application."""
    noted = CommitProperties(app_transactions=[Transaction(application, version)])
    write_deltalake(table, pa.table({"n": [version]}), mode="append", commit_properties=noted)

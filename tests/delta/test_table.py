"""The history of a table from its log, and open tables that follow new commits."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, TableFeatures, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from windrow.delta.table import history, latest_snapshot, latest_table
from windrow.errors import TableMissingError, TableUnreadableError


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table in which every commit notes its own version."""
    for version in range(3):
        append(str(tmp_path), version)
    return str(tmp_path)


def append(table: str, version: int) -> None:
    """Add a commit that notes its version."""
    noted = CommitProperties(custom_metadata={"says": str(version)})
    write_deltalake(table, pa.table({"n": [version]}), mode="append", commit_properties=noted)


class TestHistory:
    def test_commits_since_the_table_was_opened(self, table: str) -> None:
        """Commits after the version of the handle are left out, and every commit has its own number. Counting back from
        the handle's version would shift the numbers, and messages would be skipped.
        """
        opened = DeltaTable(table)
        append(table, 3)
        append(table, 4)
        assert [(commit["version"], commit["says"]) for commit in history(opened)] == [(2, "2"), (1, "1"), (0, "0")]
        assert [commit["version"] for commit in history(opened, 2)] == [2]

    def test_a_log_that_was_cleaned_up(self, table: str) -> None:
        """If older entries are gone, the history begins with the first one left."""
        DeltaTable(table).create_checkpoint()
        Path(table, "_delta_log", f"{0:020}.json").unlink()
        assert [commit["version"] for commit in history(DeltaTable(table))] == [2, 1]

    def test_a_commit_that_says_nothing(self, table: str) -> None:
        """A commit without `commitInfo` keeps its number, and so do the others."""
        file = Path(table, "_delta_log", f"{1:020}.json")
        lines = [line for line in file.read_text().splitlines() if '"commitInfo"' not in line]
        file.write_text("\n".join(lines) + "\n")
        commits = list(history(DeltaTable(table)))
        assert [(commit["version"], commit.get("says")) for commit in commits] == [(2, "2"), (1, None), (0, "0")]
        assert commits[1]["timestamp"] == file.stat().st_mtime_ns // 1_000_000

    def test_what_is_said(self, table: str) -> None:
        """On an unchanging table the history equals that of delta-rs."""
        expected = DeltaTable(table).history()
        names = ("version", "timestamp", "operation", "operationMetrics", "engineInfo", "txnId")
        for ours, theirs in zip(history(DeltaTable(table)), expected, strict=True):
            assert {name: ours.get(name) for name in names} == {name: theirs.get(name) for name in names}


CHANGES = {
    "append": lambda table: append(table, 3),
    "properties": lambda table: DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"}),
    "restore": lambda table: DeltaTable(table).restore(1),
    "columns": lambda table: DeltaTable(table).alter.add_columns([Field("more", PrimitiveType("string"))]),
    "protocol": lambda table: DeltaTable(table).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    ),
    "overwritten": lambda table: write_deltalake(
        table, pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite"
    ),
    "compacted": lambda table: DeltaTable(table).optimize.compact(),
    "number": lambda table: numbered(table, "p", 8),
}


class TestFollowed:
    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    def test_whatever_changes(self, table: str, change: Callable[[str], object]) -> None:
        """A followed table equals a newly opened one after any change, also after a checkpoint."""
        numbered(table, "p", 7)
        first = latest_table(table, "depot")
        change(table)
        same(table)
        DeltaTable(table).create_checkpoint()
        DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
        same(table)
        assert latest_table(table, "depot") is first

    def test_snapshot(self, table: str) -> None:
        """A snapshot stays the same until the table changes; then it no longer stands."""
        first = latest_snapshot(table, "ledger")
        assert latest_snapshot(table, "ledger", first) is first
        append(table, 3)
        assert first.stands()
        second = latest_snapshot(table, "ledger", first)
        assert (second.version, second.table is first.table) == (3, True)
        assert (first.version, first.stands(), second.stands()) == (2, False, True)

    def test_handles_of_their_own(self, table: str) -> None:
        """A snapshot has a private handle that nobody else moves on, so a commit on it is checked against all later
        commits.
        """
        mine = latest_snapshot(table, "ledger")
        append(table, 3)
        assert latest_table(table, "ledger").version() == latest_snapshot(table, "ledger").version == 3
        assert (mine.table.version(), mine.stands()) == (2, True)

    def test_few_are_kept(
        self, table: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tables that were read last stay open."""
        monkeypatch.setattr("windrow.delta.table.MAX_OPEN", 2)
        others = [str(tmp_path_factory.mktemp("other")) for _ in range(2)]
        for other in others:
            append(other, 0)
        first = latest_table(table, "depot")
        assert latest_table(others[0], "depot") is not first
        assert latest_table(table, "depot") is first
        latest_table(others[1], "depot")
        assert latest_table(table, "depot") is first
        assert latest_table(others[0], "depot").version() == 0
        latest_table(others[1], "depot")
        assert latest_table(table, "depot") is not first


class TestAnotherTable:
    """A table that replaced the opened one is opened again, and nothing is committed as if it were the old one."""

    @pytest.mark.parametrize("versions", [2, 3, 4], ids=["shorter", "as long", "longer"])
    @pytest.mark.parametrize("copied", [shutil.copytree, shutil.move], ids=["copied", "moved"])
    def test_in_its_place(
        self, table: str, tmp_path_factory: pytest.TempPathFactory, versions: int, copied: Callable[[str, str], object]
    ) -> None:
        """This holds for a table that was created again or restored from a copy, with fewer, as many or more
        versions.
        """
        first, known = latest_snapshot(table, "ledger"), latest_table(table, "depot")
        other = str(tmp_path_factory.mktemp("other") / "table")
        for version in range(versions):
            write_deltalake(other, pa.table({"m": [version]}), mode="append")
        shutil.rmtree(table)
        copied(other, table)
        assert not first.stands()
        same(table)
        snapshot = latest_snapshot(table, "ledger", first)
        assert (snapshot.table.metadata().id, snapshot.version) == (DeltaTable(table).metadata().id, versions - 1)
        assert latest_table(table, "depot") is not known

    def test_set_back(self, table: str) -> None:
        """This holds for a table whose last commit was removed or replaced by another one."""
        first = latest_snapshot(table, "ledger")
        latest_table(table, "depot")
        last = Path(table, "_delta_log", f"{2:020}.json")
        last.unlink()
        assert not first.stands()
        assert latest_table(table, "depot").version() == latest_snapshot(table, "ledger", first).version == 1
        numbered(table, "p", 7)
        numbered(table, "p", 8)
        assert not first.stands()
        snapshot = latest_snapshot(table, "ledger", first)
        assert (snapshot.version, snapshot.table.transaction_version("p")) == (3, 8)

    def test_log_cleaned_up_behind_it(self, table: str) -> None:
        """If the last known entry is gone, the table is opened again at its checkpoint, whether or not it has grown."""
        latest_table(table, "depot")
        append(table, 3)
        DeltaTable(table).create_checkpoint()
        for version in range(3):
            Path(table, "_delta_log", f"{version:020}.json").unlink()
        same(table)
        Path(table, "_delta_log", f"{3:020}.json").unlink()
        same(table)
        checkpoint_only = latest_snapshot(table, "ledger")
        assert (checkpoint_only.entry, checkpoint_only.stands()) == (None, True)
        assert latest_snapshot(table, "ledger", checkpoint_only) is not checkpoint_only

    def test_gone(self, table: str) -> None:
        """A table that was removed while it was open is missing."""
        first = latest_snapshot(table, "ledger")
        latest_table(table, "depot")
        shutil.rmtree(table)
        assert not first.stands()
        with pytest.raises(TableMissingError):
            latest_table(table, "depot")
        with pytest.raises(TableMissingError):
            latest_snapshot(table, "ledger", first)

    @pytest.mark.parametrize("content", ['{"add": {"pa', "[]"])
    def test_an_entry_that_is_none(self, table: str, content: str) -> None:
        """An invalid log entry makes an open table as unreadable as a newly opened one."""
        latest_table(table, "depot")
        Path(table, "_delta_log", f"{3:020}.json").write_text(content)
        with pytest.raises(TableUnreadableError):
            latest_table(table, "depot")


def same(table: str) -> None:
    """Compare a followed table with a newly opened one."""
    followed, opened = latest_table(table, "depot"), DeltaTable(table)
    for aspect in (
        DeltaTable.version,
        lambda delta_table: (delta_table.metadata().id, sorted(delta_table.metadata().configuration.items())),
        DeltaTable.protocol,
        DeltaTable.schema,
        lambda delta_table: sorted(delta_table.file_uris()),
        lambda delta_table: delta_table.transaction_version("p"),
        lambda delta_table: pa.table(delta_table.get_add_actions(flatten=True)).sort_by("path").to_pylist(),
        lambda delta_table: [commit["version"] for commit in history(delta_table)],
    ):
        assert str(aspect(followed)) == str(aspect(opened))


def numbered(table: str, application: str, version: int) -> None:
    """Add a commit with the number of an application."""
    noted = CommitProperties(app_transactions=[Transaction(application, version)])
    write_deltalake(table, pa.table({"n": [version]}), mode="append", commit_properties=noted)

"""Commits are synced to the disk, and tables are mended after a power cut."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED
from tests.engine.world import World
from tests.faults.mishaps import assert_sound, forget_tables
from tests.messages import log
from tests.probes import open_tables
from windrow.delta import durable, lock, logfiles, mending
from windrow.delta.creation import create_depot
from windrow.delta.lock import commit_lock
from windrow.delta.logfiles import ASIDE, added_files, entry_path
from windrow.delta.maintenance import DeltaRsMaintenance
from windrow.errors import (
    CommitNotDurableError,
    DepotChangedError,
    IncompatibleTableError,
    TableUnreadableError,
    TableUnwritableError,
    WindrowError,
)
from windrow.ingest.ingest import ingest
from windrow.ingest.raw_files.depot import RawDepot
from windrow.producer import Producer
from windrow.reading import status
from windrow.runtime.maintenance import maintain
from windrow.runtime.opening import tables_of
from windrow.runtime.recover import recover
from windrow.settings.settings import Settings
from windrow.verify import verify

pytestmark = pytest.mark.ci

SAID = log(versions=8, seed=3)


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tables of which each test takes a copy."""
    directory = tmp_path_factory.mktemp("eight")
    world = World(directory, ManualClock())
    world.publish(*SAID)
    world.runner(EMBEDDED, max_messages=1).once()
    return directory


@pytest.fixture
def worked(world: World, eight: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A ledger that has read eight depot versions, one per microbatch."""
    monkeypatch.setattr(mending, "SECOND_LOOK", 0.01)
    forget_tables()
    return world.filled_from(eight)


def entries(table: str, last: int) -> list[Path]:
    """Return the last entries of a log."""
    return sorted(Path(table, "_delta_log").glob("*.json"))[-last:]


def emptied(table: str, last: int) -> None:
    """Leave a log as a power cut does: the last entries exist but are empty."""
    for entry in entries(table, last):
        entry.write_bytes(b"")


def aside(table: str) -> list[str]:
    """Return the names of the files that were set aside."""
    return sorted(path.name for path in Path(table, ASIDE).rglob("*") if path.is_file())


class TestKeep:
    @pytest.mark.slow_on_executors
    def test_whole_commit_of_either_engine(self, world, engine, monkeypatch):
        """Before a commit is reported, its data files, its log entry, their directories and the depot versions that it
        read are synced.
        """
        world.publish(*SAID[:2])
        runner, kept, committed = world.runner(engine), [], []
        really = os.fsync

        def keep(descriptor):
            kept.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            really(descriptor)

        monkeypatch.setattr(os, "fsync", keep)
        before = DeltaTable(world.ledger).version()
        runner.driver.report = lambda microbatch: committed.append(list(kept))
        runner.once()
        for table, start in ((world.ledger, before), (world.depot, 0)):
            root = Path(table).resolve()
            for version in range(start + 1, DeltaTable(table).version() + 1):
                entry = root / entry_path(version)
                data = {file for file, _ in added_files(root, logfiles.actions(entry))}
                assert {entry, entry.parent, *data, *(file.parent for file in data)} <= set(committed[-1])

    @pytest.mark.parametrize("written", [False, True])
    def test_what_the_system_has_written(self, world, embedded, monkeypatch, written):
        """Versions of a depot that the system has written long ago are not synced before they are read; those of a copy
        that was just made are, however old its files claim to be.
        """
        world.publish(*SAID[:2])
        for file in Path(world.depot).rglob("*"):
            os.utime(file, (1, 1))
        if written:
            monkeypatch.setattr(durable, "WRITTEN_AFTER", -1.0)
        kept = []
        monkeypatch.setattr(durable, "fsync", kept.extend)
        world.runner(embedded).once()
        depot = Path(world.depot).resolve()
        assert {depot / entry_path(version) for version in (1, 2)}.isdisjoint(kept) == written

    def test_not_asked(self, world, embedded, monkeypatch):
        """With `fsync = false` a run syncs nothing."""
        world.publish(*SAID[:2])
        world.runner(embedded, fsync=False).once()
        world.publish(*SAID[2:4])
        monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("asked"))
        world.runner(embedded, fsync=False).once()
        assert world.version() == 2

    def test_what_others_did_not_keep(self, worked, monkeypatch):
        """A commit also syncs earlier commits that others did not sync: if they were lost, it would be lost too."""
        kept = []
        monkeypatch.setattr(durable, "fsync", kept.extend)
        lock.SYNCED.clear()
        with commit_lock(worked.ledger):
            pass
        assert set(entries(worked.ledger, 9)) <= {Path(path) for path in kept}
        kept.clear()
        with commit_lock(worked.ledger):
            pass
        assert kept == []

    def test_disk_that_does_not(self, world, embedded, monkeypatch):
        """A run ends when the disk refuses to sync: a commit that may be lost is not reported."""

        def refuse(descriptor):
            raise OSError(5, "no")

        world.publish(*SAID[:2])
        runner = world.runner(embedded)
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(CommitNotDurableError, match="may not have reached the disk"):
            runner.once()
        assert not runner.summary.microbatches

    def test_checkpoint_before_the_log_is_trimmed(self, worked, monkeypatch):
        """A checkpoint is synced before the entries that it replaces are deleted."""
        kept, at = [], {}
        monkeypatch.setattr(durable, "fsync", lambda paths: kept.extend(Path(path).name for path in paths))
        trimmed = DeltaTable.cleanup_metadata

        def clean(self):
            at["kept"] = list(kept)
            trimmed(self)

        monkeypatch.setattr(DeltaTable, "cleanup_metadata", clean)
        DeltaRsMaintenance(worked.depot, "depot").trim_log()
        assert {f"{8:020}.checkpoint.parquet", "_last_checkpoint"} <= set(at["kept"])


class TestMend:
    @pytest.mark.slow_on_spark
    @pytest.mark.parametrize("last", [1, 5])
    def test_empty_entries(self, worked, engine, last, caplog):
        """A run continues from the last whole version when empty entries follow it, and the result is the same. A
        reader that accepts empty entries would begin again with the first message.
        """
        names = [entry.name for entry in entries(worked.ledger, last)]
        emptied(worked.ledger, last)
        with pytest.raises(TableUnreadableError, match="power cut"):
            status(worked.depot, worked.ledger, NOW)
        worked.runner(engine).once()
        assert set(names) <= set(aside(worked.ledger))
        assert f"the ledger at {worked.ledger} continues from version" in caplog.text
        assert_sound(worked)
        assert worked.canonical() == worked.expected()

    @pytest.mark.parametrize("harm", ["cut", "block", "zeros", "data"])
    def test_torn_entry(self, worked, embedded, harm):
        """The same holds for an entry that is cut off or full of zeros, or whose data file is cut off."""
        entry = entries(worked.ledger, 1)[0]
        content = entry.read_bytes()
        if harm == "data":
            file, size = next(added_files(Path(worked.ledger), logfiles.actions(entry)))
            os.truncate(file, size - 1)
            os.utime(file, (entry.stat().st_mtime - 1,) * 2)
        else:
            longer = content + b'\n{"txn":{"appId":"' + b"x" * 8192
            block = longer[: 4096 * (1 + len(content) // 4096)]
            entry.write_bytes({"cut": content[:-20] + bytes(20), "block": block, "zeros": bytes(len(content))}[harm])
        worked.runner(embedded).once()
        assert entry.name in aside(worked.ledger)
        assert_sound(worked)
        assert worked.canonical() == worked.expected()

    @pytest.mark.parametrize("role", ["ledger", "depot"])
    def test_a_flipped_bit_is_not_torn(self, worked, embedded, role):
        """A bit that was flipped in the newest entry stops the run by name, or changes nothing that was
        acknowledged.
        """
        table, shape, closed = getattr(worked, role), random.Random(7), {row["id"] for row in worked.rows("closed")}
        entry = entries(table, 1)[0]
        content, stopped = entry.read_bytes(), 0
        for _ in range(60):
            at, bit = shape.randrange(len(content)), shape.randrange(8)
            entry.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            forget_tables()
            try:
                mending.repair_log(table, role)
                assert closed <= {row["id"] for row in worked.rows("closed")}
            except (WindrowError, DeltaError, OSError):
                stopped += 1
            assert aside(table) == []
            assert entries(table, 1) == [entry]
        assert stopped > 10

    @pytest.mark.parametrize("role", ["ledger", "depot"])
    def test_damage_is_named(self, worked, embedded, role):
        """A run stops at a damaged entry with its name; once it is brought back, the run goes on."""
        entry = entries(getattr(worked, role), 1)[0]
        content = entry.read_bytes()
        entry.write_bytes(content.replace(b'"add"', b'"adf"', 1))
        with pytest.raises(TableUnreadableError, match=entry.name):
            worked.runner(embedded)
        assert aside(worked.ledger) == aside(worked.depot) == []
        entry.write_bytes(content)
        worked.runner(embedded).once()
        assert worked.canonical() == worked.expected()

    @pytest.mark.parametrize("version", [2, 8])
    def test_readers_name_damage(self, worked, version):
        """Whoever reads a table with a damaged entry is told which it is, and of a data file that is gone too."""
        entry = entries(worked.ledger, 99)[version]
        content = entry.read_bytes()
        entry.write_bytes(content.replace(b'"add"', b'"add', 1))
        for read in (lambda: verify(worked.depot, worked.ledger), lambda: status(worked.depot, worked.ledger, NOW)):
            forget_tables()
            with pytest.raises(TableUnreadableError, match=entry.name):
                read()
        entry.write_bytes(content)
        forget_tables()
        file = next(Path(worked.ledger, "state=closed").glob("*/*.parquet"))
        file.unlink()
        with pytest.raises(TableUnreadableError, match=file.name):
            verify(worked.depot, worked.ledger)

    def test_of_the_depot(self, worked, embedded):
        """A depot continues from its last whole version, and the ledger from its last version that had read no
        further.
        """
        emptied(worked.depot, 3)
        worked.runner(embedded).once()
        assert_sound(worked)
        worked.publish(*SAID[5:])
        worked.runner(embedded).once()
        assert_sound(worked)
        assert worked.canonical() == worked.expected()

    @pytest.mark.parametrize("way", ["produce", "raw", "ingest", "maintain"])
    def test_before_others_write(self, worked, embedded, way, tmp_path):
        """Producers, `ingest` and `maintain` mend the table first; otherwise they would commit after an empty entry."""
        settings, depot = worked.settings(embedded), worked.depot
        if way == "raw":
            depot = str(tmp_path / "raw")
            create_depot(depot, None)
            DeltaTable(depot).alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
        name = entries(depot, 1)[0].name
        emptied(depot, 1)
        if way == "produce":
            with Producer(depot, "p") as producer:
                producer.send(key="k", type="t").result(60)
        elif way == "raw":
            RawDepot(depot)
        elif way == "ingest":
            file = tmp_path / "a.parquet"
            pq.write_table(pa.table({"key": ["k"], "type": ["t"], "event_time": [NOW]}), file)
            columns = {"event_time": "timestamp_micros(event_time)"}
            list(ingest(open_tables(settings).writer, [str(file)], columns))
        else:
            source, ledger = tables_of(settings)
            maintain([source], ledger, NOW, "depot")
        assert name in aside(depot)

    def test_compacted_entries(self, worked, embedded):
        """An entry that was compacted with later ones is set aside with them."""
        merged = Path(worked.depot, "_delta_log") / f"{6:020}.{8:020}.compacted.json"
        merged.write_text("{}")
        emptied(worked.depot, 1)
        worked.runner(embedded).once()
        assert merged.name in aside(worked.depot)
        assert_sound(worked)

    @pytest.mark.parametrize("torn", ["entry", "hint"])
    def test_only_own_tables(self, tmp_path, torn):
        """A depot that Windrow did not create is left to its owner."""
        depot = str(tmp_path / "own")
        for _ in range(2):
            write_deltalake(depot, pa.table({"key": ["k"]}), mode="append")
        if torn == "entry":
            emptied(depot, 1)
        else:
            Path(depot, "_delta_log", logfiles.HINT).write_text("{")
        assert mending.repair_log(depot, "depot") is None
        assert aside(depot) == []

    def test_torn_before_the_end(self, worked, embedded):
        """A torn entry before whole ones is an error, and nothing is moved."""
        entries(worked.ledger, 3)[0].write_bytes(b"")
        with pytest.raises(TableUnreadableError, match="recover"):
            worked.runner(embedded)
        assert aside(worked.ledger) == []

    @pytest.mark.parametrize("harmed", ["checkpoint", "hint"])
    def test_checkpoint(self, worked, embedded, harmed):
        """A torn checkpoint or hint is set aside, and nothing else."""
        DeltaTable(worked.ledger).create_checkpoint()
        pattern = "*.checkpoint.parquet" if harmed == "checkpoint" else "_last_checkpoint"
        file = next(Path(worked.ledger, "_delta_log").glob(pattern))
        file.write_bytes(file.read_bytes()[:-8])
        worked.publish(log(versions=1, seed=9)[0])
        worked.runner(embedded).once()
        assert file.name in aside(worked.ledger)
        assert not any(name.endswith(".json") for name in aside(worked.ledger))
        assert_sound(worked)

    def test_checksums(self, worked):
        """If only checksums are torn, also those of the hint, all of them are set aside."""
        DeltaTable(worked.ledger).create_checkpoint()
        log = Path(worked.ledger, "_delta_log")
        torn = [logfiles.checksums(file) for file in (entries(worked.ledger, 1)[0], log / logfiles.HINT)]
        for file in torn:
            file.write_bytes(b"")
        mending.repair_log(worked.ledger, "ledger")
        assert aside(worked.ledger) == [file.name for file in torn]
        assert not any(file.exists() for file in torn)

    def test_creation(self, world, embedded, monkeypatch):
        """A ledger whose first entry is torn is created again in the same directory."""
        monkeypatch.setattr(mending, "SECOND_LOOK", 0.01)
        world.publish(*SAID[:2])
        world.runner(embedded).once()
        emptied(world.ledger, 2)
        world.runner(embedded).once()
        assert_sound(world)
        assert world.canonical() == world.expected()

    def test_behind_a_checkpoint_alone(self, worked):
        """If the log begins with the torn entry and its checkpoint, nothing is moved, because the table would no longer
        be readable.
        """
        DeltaTable(worked.depot).create_checkpoint()
        for entry in entries(worked.depot, 99)[:-1]:
            entry.unlink()
        emptied(worked.depot, 1)
        before = sorted(Path(worked.depot).rglob("*"))
        with pytest.raises(TableUnreadableError, match="Nothing was moved"):
            mending.repair_log(worked.depot, "depot")
        assert sorted(Path(worked.depot).rglob("*")) == before

    def test_other_checksums(self, worked):
        """Hadoop's checksums may cover blocks of other sizes than 512 bytes; their header says which."""
        file, size = next(added_files(Path(worked.depot), logfiles.actions(entries(worked.depot, 1)[0])))
        content = b"crc\0" + (4096).to_bytes(4) + bytes(4 * -(-size // 4096))
        logfiles.checksums(file).write_bytes(content)
        assert mending.repair_log(worked.depot, "depot") is None

    @pytest.mark.parametrize(
        "action", ['{"remove": null}', '{"add": null}', '{"commitInfo": null}', '{"add": {"path": "a"}}']
    )
    def test_odd_actions(self, worked, action):
        """An action without content does not make an entry torn."""
        with entries(worked.depot, 1)[0].open("a") as entry:
            entry.write("\n" + action + "\n")
        assert mending.repair_log(worked.depot, "depot") is None
        assert logfiles.note(Path(worked.depot), 8) == {}

    def test_depot_mended_before(self, worked, embedded):
        """If another process mended the depot, the run stops, and `recover` takes the ledger back."""
        emptied(worked.depot, 3)
        mending.repair_log(worked.depot, "depot")
        forget_tables()
        with pytest.raises(DepotChangedError, match="recover"):
            worked.runner(embedded, max_retries=0).once()
        recover(worked.settings(embedded))
        forget_tables()
        worked.publish(*SAID[5:])
        worked.runner(embedded).once()
        assert_sound(worked)
        assert worked.canonical() == worked.expected()

    def test_whole_table(self, worked, embedded):
        """Nothing is moved in a whole table, even if a clean-up removed old files."""
        DeltaTable(worked.ledger).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        assert mending.repair_log(worked.ledger, "ledger") is None
        assert mending.repair_log(worked.depot, "depot") is None

    def test_somebody_still_writes(self, worked, monkeypatch):
        """A file that is still being written is not moved; the look waits for it."""
        monkeypatch.setattr(mending, "SECOND_LOOK", 0.5)
        entry = entries(worked.depot, 1)[0]
        content = entry.read_bytes()
        entry.write_bytes(content[:10])
        threading.Timer(0.1, entry.write_bytes, (content,)).start()
        assert mending.repair_log(worked.depot, "depot") is None
        assert aside(worked.depot) == []

    @pytest.mark.slow
    def test_files_of_hadoop(self, world, spark_engine, monkeypatch):
        """Torn Hadoop checksums next to an entry are set aside, so that Spark can read the entry."""
        monkeypatch.setattr(mending, "SECOND_LOOK", 0.01)
        world.publish(*SAID[:2])
        world.runner(spark_engine).once()
        beside = max(Path(world.ledger, "_delta_log").glob(".*.json.crc"))
        beside.write_bytes(b"")
        world.publish(*SAID[2:4])
        world.runner(spark_engine).once()
        assert beside.name in aside(world.ledger)
        assert_sound(world)


class TestRecover:
    def settings(self, world: World) -> Settings:
        """Return the settings of a world."""
        return Settings(depot=world.depot, ledger=world.ledger, engine="embedded")

    @pytest.mark.parametrize("note", [True, False], ids=["note", "no note"])
    def test_damaged_version(self, worked, embedded, note):
        """What a damaged version closed is told, as far as its lines can be read."""
        closing = next(row["microbatch"] for row in reversed(worked.history()) if row["closed"])
        closed = next(row["closed"] for row in worked.history() if row["microbatch"] == closing)
        last = [entry for entry in entries(worked.ledger, 99) if int(entry.stem) >= closing]
        content = last[0].read_bytes()
        last[0].write_bytes(content.replace(b'"add"', b'"adf"') if note else b"#" * len(content))
        recovery = recover(self.settings(worked), dry_run=True)
        assert (recovery.first, recovery.closed_batches_lost >= closed, recovery.unknown) == (
            closing,
            note,
            0 if note else 1,
        )

    @pytest.mark.parametrize("harm", ["torn in the middle", "data gone", "depot set back"])
    def test_last_version_of_use(self, worked, embedded, harm):
        """A ledger goes back to its last usable version, and the next run creates the same batches again."""
        total = DeltaTable(worked.ledger).version()
        if harm == "torn in the middle":
            entries(worked.ledger, 3)[0].write_bytes(b"")
        elif harm == "data gone":
            live = [uri for uri in DeltaTable(worked.ledger).file_uris() if "state=progress" in uri]
            Path(live[0]).unlink()
        else:
            for entry in entries(worked.depot, 3):
                entry.unlink()
        would = recover(self.settings(worked), dry_run=True)
        assert aside(worked.ledger) == []
        recovery = recover(self.settings(worked))
        assert (recovery.version, recovery.last) == (would.version, would.last) == (recovery.first - 1, total)
        forget_tables()
        if harm == "depot set back":
            worked.publish(*SAID[5:])
        worked.runner(embedded).once()
        assert_sound(worked)
        assert worked.canonical() == worked.expected()
        assert recover(self.settings(worked)).first is None

    def test_disk_that_fails(self, worked, monkeypatch):
        """Nothing is moved if a version cannot be read for a reason other than damage."""

        def fail(self, **_):
            raise OSError(5, "input/output error")

        monkeypatch.setattr(DeltaTable, "to_pyarrow_table", fail)
        with pytest.raises(TableUnwritableError, match="input/output"):
            recover(self.settings(worked))
        assert aside(worked.ledger) == []

    def test_no_ledger(self, worked):
        """A table that is not a ledger is refused."""
        with pytest.raises(IncompatibleTableError, match="not a ledger"):
            recover(Settings(depot=worked.ledger, ledger=worked.depot, engine="embedded"))
        assert aside(worked.depot) == []

    def test_nothing_of_use(self, worked, embedded):
        """If no version is usable, the whole table is set aside, and the next run starts again."""
        for file in Path(worked.ledger).glob("state=progress/*/*.parquet"):
            file.unlink()
        assert recover(self.settings(worked)).version is None
        forget_tables()
        worked.runner(embedded).once()
        assert_sound(worked)
        assert worked.canonical() == worked.expected()

"""Where a ledger starts, to which depot it belongs, and what is refused."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.engine.world import World
from tests.messages import log, message, table
from windrow.errors import (
    DepotChangedError,
    DepotMismatchError,
    IncompatibleTableError,
    SettingsError,
    StartFromMismatchError,
    TableMissingError,
)


@pytest.fixture
def full(world):
    """A depot with three versions of messages."""
    world.publish(*log(versions=3))
    return world


def versions_read(world):
    """Return the depot versions that the history names, in order."""
    return [part["version"] for row in world.history() for part in row["versions"]]


class TestStartFrom:
    @pytest.mark.parametrize(
        ("start_from", "read"),
        [
            ("beginning", [1, 2, 3, 4]),
            ("end", [4]),
            ("version:0", [1, 2, 3, 4]),
            ("version:3", [3, 4]),
            ("version:4", [4]),
        ],
    )
    def test_begins(self, full, embedded, start_from, read):
        """A new ledger reads from the place that `start_from` says, and everything after it."""
        full.runner(embedded, start_from=start_from).once()
        full.publish([message()])
        full.runner(embedded, start_from=start_from).once()
        assert versions_read(full) == read
        assert full.canonical() == full.expected(after=read[0])

    @pytest.mark.ci
    def test_begins_on_spark(self, full, spark_engine):
        """Spark's stream starts with the version after the ledger's, not with a snapshot."""
        full.runner(spark_engine, start_from="version:2").once()
        assert versions_read(full) == [2, 3]

    @pytest.mark.parametrize(
        ("start_from", "read"),
        [("timestamp:2000-01-01", [1, 2, 3, 4]), ("records-ago:60", [2, 3, 4]), ("days-ago:3", [1, 2, 3, 4])],
    )
    @pytest.mark.slow_on_spark
    def test_forms(self, full, engine, clock, start_from, read):
        """The forms that ask the depot's log find the same version on either engine. What they meant is recorded: the
        next run goes on from there, whatever the log says then.
        """
        clock.set(DeltaTable(full.depot).history(1)[0]["timestamp"] * 1_000)  # when the depot grew
        full.runner(engine, start_from=start_from).once()
        full.publish([message()])
        full.runner(engine, start_from=start_from).once()
        assert versions_read(full) == read

    def test_beyond_the_depot(self, full, embedded):
        """A start beyond the depot's last version waits for it."""
        full.runner(embedded, start_from="version:5").once()
        full.publish([message()], [message("b")])
        full.runner(embedded, start_from="version:5").once()
        assert versions_read(full) == [5]

    def test_changed(self, full, embedded):
        """A ledger refuses another `start_from` than its own."""
        full.runner(embedded, start_from="version:2").once()
        with pytest.raises(StartFromMismatchError, match="version:2"):
            full.runner(embedded, start_from="end")

    @pytest.mark.slow_on_spark
    def test_changed_before_anything_was_read(self, full, engine):
        """While nothing was read, another `start_from` is taken: who made a ledger with a wrong one begins
        elsewhere.
        """
        full.runner(engine, start_from="end")
        full.runner(engine, start_from="version:3").once()
        assert versions_read(full) == [3]
        with pytest.raises(StartFromMismatchError, match="version:3"):
            full.runner(engine, start_from="beginning")

    def test_without_meaning(self, full, embedded):
        """A `start_from` that nobody knows is an error before anything is created."""
        with pytest.raises(SettingsError, match="yesterday"):
            full.runner(embedded, start_from="yesterday")
        assert not DeltaTable.is_deltatable(full.ledger)


class TestTables:
    @pytest.mark.slow_on_spark
    def test_no_depot(self, tmp_path, engine, clock):
        """A missing depot is an error that names it, and no ledger is created."""
        world = World(tmp_path, clock)
        shutil.rmtree(world.depot)
        with pytest.raises(TableMissingError, match="there is no depot"):
            world.runner(engine)
        assert not DeltaTable.is_deltatable(world.ledger)

    def test_other_depot(self, full, embedded, clock):
        """A ledger refuses a depot that was made anew at the same path."""
        full.runner(embedded).once()
        shutil.rmtree(full.depot)
        World(Path(full.depot).parent, clock)
        with pytest.raises(DepotMismatchError):
            full.runner(embedded)

    @pytest.mark.parametrize(
        "columns", [{"x": [1]}, {"id": ["progress"], "state": ["progress"]}], ids=["other", "alike"]
    )
    @pytest.mark.slow_on_spark
    def test_no_ledger(self, full, engine, columns):
        """A Delta table that is no ledger is refused and left alone."""
        write_deltalake(full.ledger, pa.table(columns))
        with pytest.raises(IncompatibleTableError):
            full.runner(engine)
        assert DeltaTable(full.ledger).version() == 0

    def test_ledger_of_the_future(self, full, embedded):
        """A ledger of another schema version is refused."""
        full.runner(embedded).once()
        DeltaTable(full.ledger).update(updates={"schema_version": "9"}, predicate="id = 'progress'")
        with pytest.raises(IncompatibleTableError, match="schema version 9"):
            full.runner(embedded)

    @pytest.mark.slow_on_spark
    def test_ledger_of_the_past(self, full, engine):
        """A ledger without a column that this Windrow has is refused by the name of the column."""
        full.runner(engine).once()
        rows = DeltaTable(full.ledger).to_pyarrow_table().drop_columns(["commit_fingerprint"])
        shutil.rmtree(full.ledger)
        write_deltalake(full.ledger, rows, partition_by=["state"])
        with pytest.raises(IncompatibleTableError, match="no column commit_fingerprint"):
            full.runner(engine)

    def test_damaged_ledger(self, full, embedded):
        """A ledger without its progress row is refused."""
        full.runner(embedded).once()
        DeltaTable(full.ledger).delete("id = 'progress'")
        with pytest.raises(IncompatibleTableError, match="0 progress rows"):
            full.runner(embedded)


class TestDepotChanged:
    @pytest.mark.slow_on_spark
    def test_stops_or_goes_on(self, full, engine):
        """A deletion in the depot stops the run at once, and nothing of it is written. With on_depot_change "ignore"
        the run goes on: what was read stays, what is added later is read.
        """
        full.runner(engine).once()
        before = full.canonical()
        DeltaTable(full.depot).delete("key = 'k'")
        with pytest.raises(DepotChangedError, match="version 4"):
            full.runner(engine).once()
        full.publish(log(versions=1, seed=9)[0])
        with pytest.raises(DepotChangedError, match="version 4"):
            full.runner(engine).once()
        assert full.canonical() == before
        full.runner(engine, on_depot_change="ignore").once()
        assert versions_read(full) == [1, 2, 3, 5]
        assert full.canonical() == full.expected()

    def test_update(self, full, embedded):
        """An update in the depot stops the run like a deletion."""
        DeltaTable(full.depot).update(updates={"payload": "'x'"}, predicate="key = 'k'")
        with pytest.raises(DepotChangedError, match="version 4"):
            full.runner(embedded).once()

    @pytest.mark.slow_on_spark
    def test_feed_switched_on_later(self, tmp_path, engine, clock):
        """Versions from before the change feed was switched on are read by their files, on either engine."""
        world = World(tmp_path, clock)
        shutil.rmtree(world.depot)
        write_deltalake(world.depot, table([]))
        world.publish([message()])
        DeltaTable(world.depot).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        world.publish([message("b")])
        assert world.runner(engine).once().total("message_count") == 2

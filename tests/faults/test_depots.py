"""A depot that others rewrote, replaced, set back, cleaned up or damaged: an error with a code, nothing passed over."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import assert_sound, assert_whole, clean_up, damaged, data_files, log_file, run
from tests.messages import log, table
from tests.probes import Tables, no_op
from windrow import reading
from windrow.delta.creation import create_depot
from windrow.delta.table import OPEN_TABLES
from windrow.errors import (
    DepotChangedError,
    DepotMismatchError,
    DepotUnreadableError,
    ExpressionError,
    MessagesError,
    NotFoundError,
    PausedError,
    RetriesExhaustedError,
    TableMissingError,
    TableUnreadableError,
)
from windrow.operate.doctor import examine
from windrow.source.arrivals import Arrivals
from windrow.testing.points import Point, ProbedLedger, ProbedSource
from windrow.verify import verify

pytestmark = pytest.mark.ci

FEED = "delta.enableChangeDataFeed"
NEW = log(versions=1, seed=9)[0]


@pytest.fixture
def read(full: World, embedded: EngineFactory) -> World:
    """A depot of which three versions were read."""
    run(full, embedded)
    return full


def overwrite(depot: str) -> None:
    write_deltalake(depot, table(NEW), mode="overwrite")


def overwrite_with_nothing(depot: str) -> None:
    write_deltalake(depot, table([]), mode="overwrite")


def overwrite_with_other_types(depot: str) -> None:
    rows = table(NEW)
    texts = rows.set_column(rows.schema.get_field_index("sequence"), "sequence", pa.array(["x"] * rows.num_rows))
    write_deltalake(depot, texts, mode="overwrite", schema_mode="overwrite")


def overwrite_without_key(depot: str) -> None:
    write_deltalake(depot, table(NEW).drop_columns(["key"]), mode="overwrite", schema_mode="overwrite")


def restore(depot: str) -> None:
    DeltaTable(depot).restore(2)


def append_and_restore(depot: str) -> None:
    write_deltalake(depot, table(NEW), mode="append")
    DeltaTable(depot).restore(3)


def restore_to_and_fro(depot: str) -> None:
    DeltaTable(depot).restore(2)
    DeltaTable(depot).restore(3)


class TestRewritten:
    @pytest.mark.parametrize(
        "rewrite",
        [
            overwrite,
            overwrite_with_nothing,
            overwrite_with_other_types,
            restore,
            restore_to_and_fro,
        ],
    )
    def test_stops(self, read: World, embedded: EngineFactory, rewrite: Callable[[str], None]) -> None:
        """A depot that was overwritten, or RESTOREd to an earlier version, stops the run: nothing is read of it, also
        of what is appended afterwards, and what was read before stays.
        """
        before = read.canonical()
        rewrite(read.depot)
        for _ in range(2):
            with pytest.raises(DepotChangedError, match="deletes or updates rows"):
                run(read, embedded)
            assert read.canonical() == before
            write_deltalake(read.depot, pa.table({"type": ["z"]}), mode="append", schema_mode="merge")

    def test_stops_without_a_column(self, read: World, embedded: EngineFactory) -> None:
        """An overwriting that took away a column which every message needs is said before anything is read."""
        version = read.version()
        overwrite_without_key(read.depot)
        with pytest.raises(ExpressionError, match="key: nothing says where it comes from"):
            run(read, embedded)
        assert read.version() == version

    def test_stops_on_spark(self, read: World, spark_engine: EngineFactory) -> None:
        """Spark stops at a RESTORE of the depot as well."""
        before = read.canonical()
        restore(read.depot)
        read.publish(NEW)
        with pytest.raises(DepotChangedError, match="version 4 deletes or updates rows"):
            run(read, spark_engine)
        assert read.canonical() == before

    def test_stops_where_it_happened(self, read: World, embedded: EngineFactory) -> None:
        """What was appended before a RESTORE took it away again is read once, like everything in the log; the run stops
        at the RESTORE.
        """
        append_and_restore(read.depot)
        with pytest.raises(DepotChangedError, match="version 5 deletes or updates rows"):
            run(read, embedded)
        assert [part["version"] for row in read.history() for part in row["versions"]] == [1, 2, 3, 4]
        assert_whole(read)

    def test_repaired(self, read: World, embedded: EngineFactory) -> None:
        """After an overwriting was looked at, `on_depot_change = "ignore"` goes on: what was read stays, what the
        overwriting added is read once.
        """
        overwrite(read.depot)
        read.publish(log(versions=1, seed=10, start=NOW + 16_000_000)[0])
        read.runner(embedded, on_depot_change="ignore").once()
        assert_whole(read)


class TestReplaced:
    def test_at_the_start(self, read: World, embedded: EngineFactory) -> None:
        """A depot that was dropped and made anew is another one: run, status and verify say so, and nothing is read."""
        version = read.version()
        remake(read.depot)
        read.publish(*log(versions=5, seed=3))
        with pytest.raises(DepotMismatchError):
            run(read, embedded)
        with pytest.raises(DepotMismatchError):
            reading.status(read.depot, read.ledger, NOW)
        with pytest.raises(DepotMismatchError):
            verify(read.depot, read.ledger)
        assert read.version() == version

    def test_while_running(self, full: World, embedded: EngineFactory) -> None:
        """The loop notices a depot that is replaced while it runs, although its versions begin anew below those
        read.
        """
        runner = full.runner(embedded)
        runner.once()
        version = full.version()
        remake(full.depot)
        full.publish(NEW)
        with pytest.raises(DepotMismatchError):
            runner.once()
        assert full.version() == version


class Exchanging(ProbedSource):
    """A source that exchanges the directory of its depot for another one at some moment of its first read."""

    def __init__(self, source: Any, ledger: Any, moment: str, depot: Path, other: Path) -> None:
        super().__init__(source, ledger)
        ledger.at = self.at = lambda point: self._come_to(point.value)
        self._moment, self._depot, self._other = moment, depot, other

    def _come_to(self, moment: str) -> None:
        if moment == self._moment and self._other.is_dir():
            exchange(self._depot, self._other)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._come_to("listing")
        if self._moment == "listing":  # as where a run has read many other tables since it last looked
            OPEN_TABLES.clear()
        with super()._reading():
            yield

    def _arrivals(self, arrivals: Arrivals) -> Arrivals:
        self._come_to("reading")
        return super()._arrivals(arrivals)


class TestExchanged:
    @pytest.mark.slow_on_spark
    @pytest.mark.slow_unless({"is_copy": False}, {"moment": "listing"}, {"moment": "reading"})
    @pytest.mark.parametrize("moment", ["listing", "reading", *(point.value for point in Point)])
    @pytest.mark.parametrize("is_copy", [True, False], ids=["a copy that grew otherwise", "another table"])
    def test_while_it_catches_up(
        self, tmp_path: Path, full: World, engine: EngineFactory, is_copy: bool, moment: str
    ) -> None:
        """A depot whose directory is exchanged for one with as many rows in each version, at whatever moment of a run
        that catches up, is found out: the ledger never has messages of both, and with the depot back the run goes on.
        Where nothing was read in which a copy differs, the run may go on with that.
        """
        run(full, engine)
        depot, other = Path(full.depot), tmp_path / "other"
        if is_copy:
            shutil.copytree(depot, other)
        else:
            create_depot(str(other), pa.string())
        for rows in log(versions=3 if is_copy else 6, seed=7):
            write_deltalake(str(other), table(rows), mode="append")
        full.publish(*log(versions=3, seed=8, start=NOW + 16_000_000))

        def exchanging(tables: Tables) -> Tables:
            ledger = ProbedLedger(tables.ledger, no_op)
            return Tables({None: Exchanging(tables.source, ledger, moment, depot, other)}, ledger)

        with suppress(DepotChangedError, DepotMismatchError):
            full.runner(engine, exchanging, max_messages=30, max_retries=0).once()
        assert not other.is_dir()
        try:
            run(full, engine)
        except (DepotChangedError, DepotMismatchError):
            exchange(depot, away_from(depot))
            run(full, engine)
        assert_whole(full)

    def test_while_it_reads_changes(self, tmp_path: Path, read: World, embedded: EngineFactory) -> None:
        """A version that overwrites the depot is read from the change feed, which a depot put in its place after the
        listing answers as well, with rows of its own. That is found out before anything of them is in the ledger.
        """
        depot, other = Path(read.depot), tmp_path / "other"
        shutil.copytree(depot, other)
        for location, seed in ((read.depot, 10), (str(other), 11)):
            rows = log(versions=1, seed=seed, start=NOW + 16_000_000)[0]
            write_deltalake(location, table(rows), mode="overwrite")
        version = read.version()

        def exchanging(tables: Tables) -> Tables:
            ledger = ProbedLedger(tables.ledger, no_op)
            return Tables({None: Exchanging(tables.source, ledger, "reading", depot, other)}, ledger)

        with pytest.raises(DepotChangedError, match="was replaced by another table while it was read"):
            read.runner(embedded, exchanging, on_depot_change="ignore", max_retries=0).once()
        assert (read.version(), other.is_dir()) == (version, False)
        exchange(depot, away_from(depot))
        read.runner(embedded, on_depot_change="ignore").once()
        assert_whole(read)


class TestSetBack:
    def test_stops(self, read: World, embedded: EngineFactory) -> None:
        """A depot that ends before what was read of it (an older copy of its directory came back) stops the run,
        because what is appended to it would have version numbers that count as read. With the versions back it goes
        on.
        """
        copy = log_file(read.depot, 3).read_bytes()
        log_file(read.depot, 3).unlink()
        with pytest.raises(DepotChangedError, match=r"ends at version 2, but the ledger has read version 3"):
            run(read, embedded)
        log_file(read.depot, 3).write_bytes(copy)
        read.publish(NEW)
        assert run(read, embedded) == len(NEW)
        assert_whole(read)

    def test_while_running(self, full: World, embedded: EngineFactory) -> None:
        """The loop notices it while it runs."""
        runner = full.runner(embedded)
        runner.once()
        log_file(full.depot, 3).unlink()
        with pytest.raises(DepotChangedError, match="ends at version 2"):
            runner.once()

    @pytest.mark.slow_on_spark
    def test_and_grown_again(self, read: World, engine: EngineFactory) -> None:
        """When other messages took the numbers of the versions that were lost before anybody looked, the run stops as
        well, because the commit that it read last is another one. Whoever begins a new ledger reads all that is
        there.
        """
        log_file(read.depot, 3).unlink()
        read.publish(NEW)
        with pytest.raises(DepotChangedError, match=r"version 3 of the depot .* is not the commit"):
            run(read, engine)
        report = verify(read.depot, read.ledger)
        assert (report.ok, report.books[-1].lost > 0, report.books[-1].unexpected > 0) == (False, True, True)


class TestCleanedUp:
    @pytest.mark.slow_on_spark
    def test_before_it_was_read(self, read: World, engine: EngineFactory) -> None:
        """When VACUUM removed files of versions that were not read yet, the run stops at them; nothing is passed
        over.
        """
        version = read.version()
        read.publish(NEW)
        clean_up(read.depot)
        with pytest.raises((DepotUnreadableError, RetriesExhaustedError), match="WINDROW-"):
            run(read, engine)
        assert read.version() == version
        assert_sound(read)

    @pytest.mark.slow_on_spark
    def test_after_it_was_read(self, read: World, engine: EngineFactory) -> None:
        """OPTIMIZE and VACUUM of what was read disturb nothing: the run goes on with what is new."""
        clean_up(read.depot)
        read.publish(NEW)
        assert run(read, engine) == len(NEW)
        assert_sound(read)

    def test_begin_behind_it(self, read: World, embedded: EngineFactory) -> None:
        """What comes after the versions that are gone goes into a new ledger, as the error says."""
        read.publish(NEW)
        clean_up(read.depot)
        read.publish(NEW)
        read.ledger += "-behind"
        with pytest.raises(DepotUnreadableError, match=r"a new ledger .* can begin after it"):
            run(read, embedded)
        settings = embedded.settings(read.depot, read.ledger)
        hint = next(finding.hint for finding in examine(lambda: settings, NOW) if finding.code == "depot-readable")
        read.ledger += "-again"
        read.runner(embedded, start_from=re.search(r'start_from = "(.*)"', hint)[1]).once()
        assert [row["messages_read"] for row in read.history()] == [len(NEW)]


class TestFeed:
    @pytest.mark.slow_on_spark
    @pytest.mark.parametrize("by", [None, ["type"]], ids=["plain", "partitioned"])
    def test_of_a_depot_without_one(self, world: World, engine: EngineFactory, by: list[str] | None) -> None:
        """A depot that never had a change feed is read from its first version on, by the files that versions appended;
        what OPTIMIZE writes again is not new.
        """
        shutil.rmtree(world.depot)
        first, second, third = log(versions=3, seed=10)
        write_deltalake(world.depot, table(first), partition_by=by)
        write_deltalake(world.depot, table(second), mode="append")
        DeltaTable(world.depot).optimize.compact()
        assert run(world, engine) == len(first) + len(second)
        write_deltalake(world.depot, table(third), mode="append")
        assert run(world, engine) == len(third)
        assert_sound(world)

    @pytest.mark.slow_on_spark
    def test_deletion_without_one(self, world: World, engine: EngineFactory) -> None:
        """Rows that were deleted where there is no feed stop the run, also one that ignores deletions: what the
        deletion kept and wrote again would look new.
        """
        shutil.rmtree(world.depot)
        write_deltalake(world.depot, table(NEW))
        DeltaTable(world.depot).delete("type = 'a'")
        for handling in ("error", "ignore"):
            with pytest.raises((DepotChangedError, DepotUnreadableError)):
                world.runner(engine, on_depot_change=handling, max_retries=0).once()

    @pytest.mark.slow_on_spark
    def test_switched_off_in_between(self, read: World, engine: EngineFactory) -> None:
        """What was appended while the feed was off is read from the appended files, also when the feed is on again."""
        switch(read, "false")
        read.publish(NEW)
        switch(read, "true")
        read.publish(log(versions=1, seed=10)[0])
        assert run(read, engine) == 2 * len(NEW)
        counted = read.rows("microbatch")[-1]["versions"]
        assert [(part["version"], part["messages"]) for part in counted] == [(5, 30), (7, 30)]

        assert_sound(read)

    @pytest.mark.slow_on_spark
    def test_switched_off_within_a_slice(self, read: World, engine: EngineFactory) -> None:
        """What was appended before and after the feed was switched off is read in one slice."""
        read.publish(NEW)
        switch(read, "false")
        read.publish(NEW)
        switch(read, "true")
        read.publish(NEW)
        switch(read, "false")
        assert run(read, engine) == 3 * len(NEW)
        assert [part["version"] for part in read.rows("microbatch")[-1]["versions"]] == [4, 6, 8]
        assert_sound(read)

    @pytest.mark.slow_on_spark
    def test_deletion_while_off(self, read: World, engine: EngineFactory) -> None:
        """A deletion while the feed was off stops the run like any other."""
        switch(read, "false")
        DeltaTable(read.depot).delete("key = 'k'")
        switch(read, "true")
        read.publish(NEW)
        version = read.version()
        with pytest.raises(DepotUnreadableError):
            run(read, engine)
        assert read.version() == version

    @pytest.mark.slow_on_spark
    def test_deletion_while_off_is_not_ignored(self, read: World, engine: EngineFactory) -> None:
        """Also with `on_depot_change = "ignore"`: the rows that the deletion kept, and wrote anew, would be read
        again.
        """
        switch(read, "false")
        DeltaTable(read.depot).delete("type = 'a'")
        switch(read, "true")
        version = read.version()
        with pytest.raises(DepotUnreadableError):
            read.runner(engine, on_depot_change="ignore", max_retries=0).once()
        assert read.version() == version


class TestAccepted:
    """`windrow run --skip-version`: the run goes past one version that deleted or rewrote rows."""

    @pytest.mark.parametrize("feed", ["true", "false"], ids=["feed", "no feed"])
    @pytest.mark.slow_on_spark
    def test_a_deletion(self, world: World, engine: EngineFactory, feed: str) -> None:
        """What was appended before and after an accepted version is read once, and no row of that version. The history
        records it, and verify and a replay agree.
        """
        first, second, third = log(versions=3, seed=10)
        switch(world, feed)
        world.publish(first, second)
        DeltaTable(world.depot).delete("type = 'a'")
        world.publish(third)
        with pytest.raises((DepotChangedError, DepotUnreadableError), match="depot version 4 "):
            run(world, engine)
        runner = world.runner(engine, max_retries=0)
        runner.skip_version(4)
        runner.once()
        assert [row["depot_version"] for row in world.history() if row["kind"] == "skip"] == [4]
        assert [part["version"] for row in world.history() for part in row["versions"] or ()] == [2, 3, 5]
        assert sum(row["messages_read"] for row in world.history()) == len(first) + len(second) + len(third)
        report = verify(world.depot, world.ledger)
        assert (report.ok, report.books[-1].unchecked) == (True, 0)
        assert world.replayed().comparison is None
        assert reading.status(world.depot, world.ledger, NOW).depots[0].skipped_versions == (4,)

    @pytest.mark.slow_on_spark
    def test_rows_that_it_added(self, read: World, engine: EngineFactory) -> None:
        """Rows that an accepted version added are not read, whether or not the change feed names them."""
        overwrite(read.depot)
        runner = read.runner(engine, max_retries=0)
        runner.skip_version(4)
        runner.once()
        assert read.history()[-1]["kind"] == "skip"
        assert verify(read.depot, read.ledger).ok

    @pytest.mark.parametrize("feed", ["true", "false"], ids=["feed", "no feed"])
    @pytest.mark.slow_on_spark
    def test_restored(self, read: World, engine: EngineFactory, feed: str) -> None:
        """A RESTORE brings back rows that were read: it stops the run, whatever it removes, until it is accepted as
        well.
        """
        switch(read, feed)
        before, last = read.canonical(), DeltaTable(read.depot).version()
        DeltaTable(read.depot).delete()
        DeltaTable(read.depot).restore(last)
        assert reading.status(read.depot, read.ledger, NOW).depots[0].changed_version == last + 1
        runner = read.runner(engine, max_retries=0)
        runner.skip_version(last + 1)
        with pytest.raises(DepotChangedError, match=f"depot version {last + 2} is a RESTORE"):
            runner.once()
        assert reading.status(read.depot, read.ledger, NOW).depots[0].changed_version == last + 2
        read.publish(NEW)
        runner = read.runner(engine, max_retries=0)
        runner.skip_version(last + 2)
        assert read.canonical() == before
        runner.once()
        assert read.history()[-1]["messages_read"] == len(NEW)
        assert verify(read.depot, read.ledger).ok

    def test_beside_switches_of_the_feed(self, read: World, embedded: EngineFactory) -> None:
        """Verify reads a depot in which versions were accepted and the feed was switched off and on."""
        for feed in ("false", "true"):
            switch(read, feed)
            read.publish(NEW)
            DeltaTable(read.depot).delete("type = 'a'")
            read.publish(NEW)
            read.runner(embedded, max_retries=0).skip_version(DeltaTable(read.depot).version() - 1)
            run(read, embedded)
        report = verify(read.depot, read.ledger)
        assert (report.ok, report.books[-1].unchecked) == (True, 0)
        assert read.replayed().comparison is None

    def test_twice(self, read: World, embedded: EngineFactory) -> None:
        """A version that the ledger has passed is passed for good: to accept it again does nothing."""
        overwrite(read.depot)
        for _ in range(2):
            runner = read.runner(embedded, max_retries=0)
            runner.skip_version(4)
            runner.once()
        assert read.kinds().count("skip") == 1

    @pytest.mark.slow_on_spark
    def test_another_one_stops(self, read: World, engine: EngineFactory) -> None:
        """Each version is accepted by its number: another one before it, or after it, stops the run."""
        switch(read, "false")
        DeltaTable(read.depot).delete("type = 'a'")
        read.publish(NEW)
        DeltaTable(read.depot).delete("type = 'b'")
        with pytest.raises((DepotChangedError, DepotUnreadableError), match="depot version 5"):
            read.runner(engine, max_retries=0).skip_version(7)
        runner = read.runner(engine, max_retries=0)
        runner.skip_version(5)
        with pytest.raises((DepotChangedError, DepotUnreadableError), match="depot version 7"):
            runner.once()
        runner = read.runner(engine, max_retries=0)
        runner.skip_version(7)
        assert [row["depot_version"] for row in read.history()][-3:] == [5, 6, 7]

    @pytest.mark.parametrize("version", [4, 5])
    def test_only_what_lost_rows(self, read: World, embedded: EngineFactory, version: int) -> None:
        """A version that only appended, or that there is not, cannot be accepted: its messages would be lost."""
        read.publish(NEW)
        with pytest.raises(NotFoundError, match="deleted or rewrote no rows"):
            read.runner(embedded).skip_version(version)
        assert run(read, embedded) == len(NEW)

    def test_paused(self, read: World, embedded: EngineFactory) -> None:
        """A paused ledger accepts nothing."""
        overwrite(read.depot)
        read.runner(embedded).pause()
        with pytest.raises(PausedError):
            read.runner(embedded).skip_version(4)

    def test_beside_another_driver(self, full: World, embedded: EngineFactory) -> None:
        """Where a pause by another driver ended the reading, the version is not accepted before the rest was read."""
        overwrite(full.depot)
        rival = full.runner(embedded)
        moves = [(Point.BEFORE_COMMIT, rival.pause), (Point.AFTER_PRIME, rival.resume)]

        def at(here: Point) -> None:
            if moves and here is moves[0][0]:
                moves.pop(0)[1]()

        runner = full.probed(embedded, at, max_retries=0)
        runner.skip_version(4)
        assert [part["version"] for row in full.history() for part in row["versions"] or ()] == [1, 2, 3]
        assert full.kinds()[-1] == "skip"


class TestSchema:
    def test_column_added(self, read: World, embedded: EngineFactory) -> None:
        """A column more in the depot is no concern of Windrow's."""
        more = table(NEW).append_column("colour", pa.array(["red"] * len(NEW)))
        write_deltalake(read.depot, more, mode="append", schema_mode="merge")
        assert run(read, embedded) == len(NEW)
        assert_whole(read)

    @pytest.mark.parametrize("name", ["key", "type", "event_time", "received_at"])
    def test_column_never_there(self, world: World, embedded: EngineFactory, name: str) -> None:
        """A depot without a column that every message needs is refused with the column's name."""
        remake(world.depot, table(NEW).drop_columns([name]))
        with pytest.raises(ExpressionError, match=f"{name}: nothing says where it comes from"):
            run(world, embedded)
        assert not DeltaTable.is_deltatable(world.ledger)

    def test_column_of_another_type(self, world: World, embedded: EngineFactory) -> None:
        """A depot whose times are texts is refused with the column's name."""
        rows = table(NEW)
        rows = rows.set_column(rows.schema.get_field_index("event_time"), "event_time", pa.array(["noon"] * len(NEW)))
        remake(world.depot, rows)
        with pytest.raises(MessagesError, match="column 'event_time' is string"):
            run(world, embedded)
        assert world.history() == []


class TestDamaged:
    @pytest.mark.parametrize("damage", ["gone", "empty", "cut"])
    def test_data_file(self, read: World, embedded: EngineFactory, damage: str) -> None:
        """A data file of a new version that is gone, empty or cut short stops the run; with the file back it goes
        on.
        """
        known = data_files(read.depot)
        read.publish(NEW)
        (file,) = data_files(read.depot) - known
        with damaged(file, damage), pytest.raises(DepotUnreadableError):
            run(read, embedded)
        assert run(read, embedded) == len(NEW)
        assert_whole(read)

    @pytest.mark.slow
    def test_data_file_on_spark(self, read: World, spark_engine: EngineFactory) -> None:
        """Spark stops as well, and says which file."""
        known = data_files(read.depot)
        read.publish(NEW)
        (file,) = data_files(read.depot) - known
        with damaged(file, "gone"), pytest.raises(RetriesExhaustedError, match=f"FILE_NOT_EXIST.*{file.name}"):
            run(read, spark_engine)
        assert run(read, spark_engine) == len(NEW)
        assert_whole(read)

    @pytest.mark.parametrize("damage", ["gone", "empty", "cut"])
    def test_log_file(self, read: World, embedded: EngineFactory, damage: str) -> None:
        """A gap in the depot's log, or a log file that is empty or cut short, stops the run; with the file back it goes
        on.
        """
        read.publish(NEW, log(versions=1, seed=10)[0])
        with damaged(log_file(read.depot, 4), damage), pytest.raises((TableUnreadableError, DepotUnreadableError)):
            run(read, embedded)
        assert run(read, embedded) == 2 * len(NEW)
        assert_whole(read)

    def test_log_gone(self, read: World, embedded: EngineFactory) -> None:
        """Without its log the depot is none; nobody makes a new one over its files."""
        shutil.rmtree(Path(read.depot) / "_delta_log")
        with pytest.raises(TableMissingError, match="there is no depot"):
            run(read, embedded)


def switch(world: World, feed: str) -> None:
    """Switch the change feed of the depot."""
    DeltaTable(world.depot).alter.set_table_properties({FEED: feed})


def exchange(depot: Path, other: Path) -> None:
    """Put another directory in the place of a depot, which is put away."""
    depot.rename(depot.with_name("exchanging"))
    other.rename(depot)
    depot.with_name("exchanging").rename(away_from(depot))


def away_from(depot: Path) -> Path:
    """Return where a depot is put away."""
    return depot.with_name("away")


def remake(depot: str, rows: pa.Table | None = None) -> None:
    """Drop a depot and make another in its place."""
    shutil.rmtree(depot)
    if rows is None:
        create_depot(depot, pa.string())
    else:
        write_deltalake(depot, rows, configuration={FEED: "true"})

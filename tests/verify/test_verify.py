"""A ledger as the embedded engine wrote it is right; every way of damaging it is found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, Row, log, message
from tests.verify.conftest import BY_DECISIONS, BY_LOG
from windrow.errors import DepotMismatchError, IncompatibleTableError, NotFoundError, TableMissingError
from windrow.model import tables
from windrow.reading.tables import open_ledger
from windrow.verify import Report, verify
from windrow.verify.invariants import INVARIANTS
from windrow.verify.report import VerifyProgress

RULES = {"max_batch_bytes": 40}
SECONDS = timedelta(seconds=1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that saw data with every kind of rejection, a change of the rules, a tick, a flush, and data again."""
    root, clock = tmp_path_factory.mktemp("written"), ManualClock()
    world, engine = World(root, clock), EngineFactory("embedded")
    *before, last = log(versions=5, seed=3)
    for rows in before:
        world.publish(rows)
        world.runner(engine).once()
    clock.advance(20 * SECOND)
    world.runner(engine, rules={"max_delay": "6s", **RULES}).tick(NOW + 16 * SECOND)
    world.runner(engine, rules={"max_delay": "6s", **RULES}).flush()
    world.publish(last, [message(kind, NOW + 40 * SECOND, NOW + 40 * SECOND) for kind in "ab"])
    world.runner(engine, rules={"max_delay": "6s", **RULES}, max_messages=10).once()
    return root


@pytest.fixture
def world(written: Path, tmp_path: Path, clock: ManualClock) -> World:
    """A copy of these tables."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return World(tmp_path, clock)


def check(world: World) -> Report:
    """Verify the latest version."""
    return verify(world.depot, world.ledger)


def failed_checks(report: Report) -> set[str]:
    """Return the names of the checks that found a difference.

    The invariants are tested in tests/verify/quality; what is derived again, and the log, in other files beside this
    one.
    """
    return {difference.check for difference in report.differences} - INVARIANTS.keys() - BY_DECISIONS - BY_LOG


def failing(report: Report) -> set[str]:
    """Return the invariants that fail."""
    return {difference.check for difference in report.differences} & INVARIANTS.keys()


def rewrite(world: World, change: Callable[[list[Row]], list[Row] | None]) -> Report:
    """Damage the ledger: replace its rows by what `change` makes of them, and verify."""
    states = (tables.OPEN, *tables.CONTROL, *tables.FINAL)
    rows = open_ledger(world.ledger).rows(states, "*", rest="ORDER BY id").to_pylist()
    changed = change(rows) or rows
    schema = tables.ledger_schema(world.payload)
    write_deltalake(world.ledger, pa.Table.from_pylist(changed, schema), mode="overwrite")
    return check(world)


def update(world: World, state: str, change: Callable[[Row], Any], where: Callable[[Row], bool] = bool) -> Report:
    """Change the first row of a state for which `where` holds, and verify."""

    def first(rows: list[Row]) -> None:
        change(next(row for row in rows if row["state"] == state and where(row)))

    return rewrite(world, first)


def without(world: World, state: str) -> Report:
    """Drop the first row of a state, and verify."""

    def drop(rows: list[Row]) -> list[Row]:
        at = next(place for place, row in enumerate(rows) if row["state"] == state)
        return rows[:at] + rows[at + 1 :]

    return rewrite(world, drop)


class TestClean:
    @pytest.mark.slow
    def test_every_version(self, world):
        """At every version of a ledger as it was written the books balance, and each message read is in exactly one
        batch or rejected.
        """
        report = verify(world.depot, world.ledger, range(world.version() + 1))
        assert report.differences == ()
        assert (report.ok, report.complete, report.findings) == (True, True, ())
        assert [books.ledger_version for books in report.books] == list(range(world.version() + 1))
        for books in report.books:
            assert (
                books.messages_read == books.in_open_batches + books.in_closed_batches + books.rejected == books.matched
            )
            assert (books.lost, books.duplicated, books.unexpected, books.unchecked) == (0, 0, 0, 0)
        assert {"data", "tick", "rules", "flush"} == set(world.kinds())
        assert report.books[-1].messages_read == 152

    def test_rewriting_changes_nothing(self, world):
        """The way in which these tests damage a ledger finds nothing when nothing is damaged."""
        assert rewrite(world, lambda rows: None).differences == ()

    def test_waiting(self, world):
        """Messages that no microbatch has read yet are not lost."""
        world.publish(*log(versions=1, seed=9))
        report = check(world)
        assert report.ok
        assert report.books[0].messages_read == 152

    @pytest.mark.ci
    @pytest.mark.parametrize("start_from", ["end", "version:2"])
    def test_start_from(self, tmp_path, clock, embedded, start_from):
        """Messages from before the beginning of the ledger do not count."""
        world = World(tmp_path, clock)
        world.publish(*log(versions=1, seed=1))
        world.runner(embedded, start_from=start_from)
        world.publish(*log(versions=2, seed=2))
        world.runner(embedded, start_from=start_from).once()
        report = verify(world.depot, world.ledger, [0, 1])
        assert (report.ok, [books.matched for books in report.books]) == (True, [0, 60])

    @pytest.mark.ci
    def test_binary(self, tmp_path, clock, embedded):
        """Bytes are compared as they are, and NULL, no bytes and other bytes differ."""
        world = World(tmp_path, clock, pa.binary())
        world.publish(
            [message(kind, payload=payload) for kind, payload in zip("abc", [b"\xff", b"", None], strict=True)]
        )
        world.runner(embedded).once()
        assert check(world).ok
        report = update(world, "open", lambda row: row["messages"][2].update(payload=b""))
        assert (report.books[0].matched, report.books[0].lost, report.books[0].unexpected) == (2, 1, 1)
        json.dumps(report.to_dict())

    def test_progress(self, world):
        """Whoever asks is told before the depot is read, and how far each version is."""
        steps: list[VerifyProgress] = []
        verify(world.depot, world.ledger, [3, 1], steps.append)
        progress = [(step.ledger_version, step.parts_done, step.part_count) for step in steps]
        assert progress == [(-1, 0, 0), (1, 0, 1), (1, 1, 1), (3, 0, 1), (3, 1, 1)]

    def test_independent(self):
        """Nothing that writes ledgers is imported: a mistake there cannot hide itself here."""
        writers = [
            "batching",
            "clock",
            "engine",
            "floors",
            "microbatch",
            "progress",
            "rejection",
            "runner",
            "step",
            "wall",
        ]
        code = f"import sys, windrow.verify; print([name for name in {writers} if 'windrow.' + name in sys.modules])"
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


class TestMessages:
    def test_batch_dropped(self, world):
        """The messages of a closed batch that is gone are lost."""
        report = without(world, "closed")
        assert {"lost", "balance"} <= failed_checks(report)
        assert {"closed_batches_there", "microbatch_closed"} <= failing(report)
        assert report.books[0].lost > 0

    @pytest.mark.ci
    def test_open_batch_dropped(self, world):
        """The messages of an open batch that is gone are lost."""
        report = without(world, "open")
        assert {"lost", "balance"} <= failed_checks(report)
        assert "open_batches_there" in failing(report)

    @pytest.mark.ci
    def test_rejection_dropped(self, world):
        """A message whose rejection is gone is lost, and the example says which one and from which depot version."""
        report = without(world, "rejected")
        assert {"lost", "balance"} <= failed_checks(report)
        assert "microbatch_rejected" in failing(report)
        (example,) = next(difference for difference in report.differences if difference.check == "lost").examples
        assert (example["times"], example["ledger_rows"]) == (1, [])
        assert example["depot_version"] in range(1, 6)

    def test_copied(self, world):
        """A message that is also in another batch is duplicated, and the example names both."""

        def copy(rows: list[Row]) -> None:
            giver, taker = [row for row in rows if row["state"] == "closed"][:2]
            taker["messages"].append(giver["messages"][0])
            taker["message_count"] += 1
            taker |= {"source": giver["source"], "key": giver["key"]}

        report = rewrite(world, copy)
        assert {"duplicated", "balance"} <= failed_checks(report)
        assert "message_once" in failing(report)
        example = next(difference for difference in report.differences if difference.check == "duplicated").examples[0]
        assert len(example["ledger_rows"]) == 2

    def test_payload_changed(self, world):
        """A message with another payload is one lost and one unexpected."""
        report = update(world, "closed", lambda row: row["messages"][0].update(payload="changed"))
        assert {"lost", "unexpected"} <= failed_checks(report)
        assert (report.books[0].lost, report.books[0].unexpected, report.books[0].duplicated) == (1, 1, 0)

    @pytest.mark.parametrize("column", ["sequence", "received_at", "payload"])
    def test_null(self, world, column):
        """NULL in the place of any value is a difference."""
        report = update(
            world,
            "closed",
            lambda row: next(message for message in row["messages"] if message[column] is not None).update(
                {column: None}
            ),
            lambda row: any(message[column] is not None for message in row["messages"]),
        )
        assert {"lost", "unexpected"} <= failed_checks(report)

    def test_invented(self, world):
        """A rejected message that the depot never had is unexpected."""

        def invent(rows: list[Row]) -> list[Row]:
            rejection = next(row for row in rows if row["state"] == "rejected")
            return [*rows, rejection | {"id": "rejected/1///99", "key": "nobody"}]

        report = rewrite(world, invent)
        assert {"unexpected", "balance"} <= failed_checks(report)
        assert "microbatch_rejected" in failing(report)
        (example,) = next(difference for difference in report.differences if difference.check == "unexpected").examples
        assert example["ledger_rows"] == ["rejected/1///99"]

    @pytest.mark.ci
    def test_version_skipped(self, world):
        """A depot version that counts as read but was not is found, with all its messages lost."""
        world.publish(*log(versions=1, seed=9))

        def skip(rows: list[Row]) -> None:
            for row in rows:
                if row["id"] == "progress" or row["microbatch"] == max(other["microbatch"] or 0 for other in rows):
                    row["depot_version"] += 1

        report = rewrite(world, skip)
        assert failed_checks(report) == {"lost", "depot versions", "progress row"}
        assert report.books[0].lost == 30
        assert all(len(difference.examples) <= 20 for difference in report.differences)


@pytest.mark.ci
class TestBatches:
    def test_window_narrowed(self, world):
        """A message outside its window is found."""
        report = update(
            world,
            "closed",
            lambda row: row.update(window_end=row["last_event_time"], timeout_at=row["last_event_time"]),
        )
        assert {"batch_messages_inside", "batch_timeout"} <= failing(report)

    @pytest.mark.parametrize("microseconds", [5_500_000, 6_000_001])
    def test_open_timeout(self, world, microseconds):
        """An open batch whose timeout no rules ever gave is found, also between those of two rules."""
        later = timedelta(microseconds=microseconds)
        report = update(world, "open", lambda row: row.update(timeout_at=row["window_end"] + later))
        assert "batch_timeout" in failing(report)

    def test_type_twice(self, world):
        """A batch with two messages of one type is found."""
        report = update(
            world,
            "closed",
            lambda row: row["messages"][1].update(type=row["messages"][0]["type"]),
            lambda row: row["message_count"] > 1,
        )
        assert {"lost", "unexpected"} <= failed_checks(report)
        assert "type_once_in_window" in failing(report)

    def test_type_twice_before_repeats_were_kept(self, world, embedded):
        """A batch with two messages of one type is found also in a ledger that keeps repeats, if it closed before."""
        world.runner(embedded, rules={"max_delay": "6s", **RULES, "on_repeat": "keep"}).tick(NOW + 60 * SECOND)
        report = update(
            world,
            "closed",
            lambda row: row["messages"][1].update(type=row["messages"][0]["type"]),
            lambda row: row["message_count"] > 1 and row["closed_microbatch"] < 5,
        )
        assert "type_once_in_window" in failing(report)


@pytest.mark.ci
class TestHistory:
    def test_microbatch_dropped(self, world):
        """A microbatch that is missing in the history is found."""
        report = without(world, "microbatch")
        assert {"balance", "depot versions"} <= failed_checks(report)
        assert {"microbatch_numbers", "progress_microbatch"} <= failing(report)

    @pytest.mark.parametrize(
        ("column", "check"),
        [
            ("accepted", "microbatch_sums"),
            ("messages_read", "books_balance"),
            ("opened", "open_batches_there"),
            ("closed", "closed_batches_there"),
        ],
    )
    def test_counts(self, world, column, check):
        """A count of the history that is one too high is found."""
        report = update(world, "microbatch", lambda row: row.update({column: row[column] + 1}))
        assert check in failing(report)

    def test_progress_back(self, world):
        """A progress that was moved back, so that messages would be read again, is found."""
        report = update(world, "progress", lambda row: row.update(depot_version=row["depot_version"] - 1), is_control)
        assert {"unexpected", "duplicated"} & failed_checks(report) == {"unexpected"}
        assert "progress_last" in failing(report)

    def test_rules(self, world):
        """Rules in the progress that no microbatch recorded are found, and text that holds no rules is refused."""
        report = update(
            world, "progress", lambda row: row.update(rules=row["rules"].replace("6000000", "5000000")), is_control
        )
        assert "progress_last" in failing(report)
        with pytest.raises(IncompatibleTableError, match="rules that are not valid"):
            update(world, "microbatch", lambda row: row.update(rules="{}"))

    def test_beyond_the_depot(self, world):
        """A progress beyond the depot's latest version is found."""

        def beyond(rows: list[Row]) -> None:
            for row in rows:
                if row["id"] == "progress" or row["microbatch"] == max(other["microbatch"] or 0 for other in rows):
                    row["depot_version"] = 99

        assert failed_checks(rewrite(world, beyond)) == {"depot"}

    def test_versions(self, world):
        """A depot version that is listed with another number of messages is found."""
        report = update(
            world, "microbatch", lambda row: row["versions"][0].update(messages=31), lambda row: row["versions"]
        )
        assert failed_checks(report) == {"depot versions"}
        assert failing(report) == {"versions_sum"}

    def test_versions_out_of_order(self, world):
        """Depot versions that a microbatch lists in another order are found."""
        world.publish(*log(versions=2, seed=9))
        world.runner(EngineFactory("embedded"), rules={"max_delay": "6s", **RULES}).once()
        report = update(
            world, "microbatch", lambda row: row["versions"].reverse(), lambda row: len(row["versions"] or ()) > 1
        )
        assert failing(report) == {"versions_in_order"}


@pytest.mark.ci
class TestRejections:
    def test_id(self, world):
        """A rejection whose id names a depot version that does not have its message is found."""
        report = update(world, "rejected", lambda row: row.update(id=row["id"].replace("rejected/1/", "rejected/2/")))
        assert failed_checks(report) == {"rejected from"}


@pytest.mark.ci
class TestFinals:
    def test_changed_later(self, world):
        """A closed batch and a rejection that differ from an earlier version are found, an earlier version is not."""
        before = world.version()
        update(
            world,
            "closed",
            lambda row: row.update(closed_microbatch=row["opened_microbatch"]),
            lambda row: row["closed_microbatch"] > row["opened_microbatch"],
        )
        report = verify(world.depot, world.ledger, [before, before + 1])
        assert "final rows (closed)" in failed_checks(report)
        assert {difference.ledger_version for difference in report.differences} == {before + 1}

    def test_restored(self, world):
        """What a RESTORE takes back is no difference."""
        before = world.version()
        DeltaTable(world.ledger).restore(before - 2)
        report = verify(world.depot, world.ledger, [before - 2, before, before + 1])
        assert report.differences == ()


class TestTables:
    def test_depot_forgotten(self, world, embedded):
        """Depot versions whose files are gone are named, the others are compared, and their messages are unchecked."""
        DeltaTable(world.depot).optimize.compact()
        forget(world.depot)
        world.publish([message(kind, NOW + 41 * SECOND, NOW + 41 * SECOND) for kind in "abc"])
        world.runner(embedded, rules={"max_delay": "6s", **RULES}).once()
        report = check(world)
        assert report.findings == (
            "depot versions 0..6 can no longer be read",
            "the decisions on 9 of 9 streams in ledger version 10, which have messages in these depot versions",
        )
        assert (report.ok, report.complete) == (True, False)
        assert (report.books[0].matched, report.books[0].unchecked) == (3, 152)
        assert "unreadable versions" in failed_checks(without(world, "closed"))

    @pytest.mark.ci
    def test_beginning_forgotten(self, tmp_path, clock, embedded):
        """Where the first version of a ledger is gone that began at the end of the log, its history tells where that
        was.
        """
        world = World(tmp_path, clock)
        world.publish(*log(versions=1, seed=1))
        world.runner(embedded, start_from="end")
        world.publish(*log(versions=1, seed=2))
        world.runner(embedded, start_from="end").once()
        fold(world)
        forget(world.ledger)
        report = check(world)
        assert report.findings == ("where the ledger began can only be told from its history: at depot version 2",)
        assert (report.ok, report.books[0].matched) == (True, 30)

    def test_version_missing(self, world):
        """A ledger version that is not there, or whose files are gone, cannot be found."""
        for version in (99, -1):
            with pytest.raises(NotFoundError, match=f"ledger version {version} cannot be read"):
                verify(world.depot, world.ledger, [version])
        fold(world)
        forget(world.ledger)
        with pytest.raises(NotFoundError, match="ledger version 1 cannot be read"):
            verify(world.depot, world.ledger, [1])
        assert check(world).ok

    def test_other_tables(self, world, tmp_path, clock):
        """Tables that are missing, no ledger, or not the ledger's depot are refused."""
        with pytest.raises(TableMissingError, match="no ledger"):
            verify(world.depot, str(tmp_path / "nowhere"))
        with pytest.raises(TableMissingError, match="no depot"):
            verify(str(tmp_path / "nowhere"), world.ledger)
        with pytest.raises(IncompatibleTableError, match="not a ledger"):
            verify(world.depot, world.depot)
        other = World(tmp_path / "other", clock)
        with pytest.raises(DepotMismatchError):
            verify(other.depot, world.ledger)


def is_control(row: Row) -> bool:
    """Tell the progress row from those of the sources."""
    return row["id"] == tables.PROGRESS


def fold(world: World) -> None:
    """Fold a ledger."""
    ledger = world.tables(EMBEDDED).ledger
    ledger.fold(ledger.live(), "large")


def forget(table: str) -> None:
    """Delete the files that later commits removed."""
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

"""What the tables say without an engine: status, batches, rejections."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.messages import HOUR, MILLISECOND, SECOND, log, message, table
from windrow.batching.batched import batch as batch_messages
from windrow.batching.rules import Rules
from windrow.errors import (
    DepotChangedError,
    DepotMismatchError,
    DepotUnreadableError,
    IncompatibleTableError,
    NotFoundError,
    TableMissingError,
)
from windrow.model import tables
from windrow.reading import (
    BatcherStatus,
    batch,
    batches,
    count_waiting,
    history,
    rejection,
    rejections,
    status,
    time_range,
)
from windrow.reading.closed import read_closed
from windrow.reading.digests import digests
from windrow.reading.export import export
from windrow.reading.status import ReadableRange
from windrow.runtime.maintenance import fold
from windrow.verify import quality, verify

MINUTE = 60 * SECOND
DAY = 24 * HOUR


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Tables after 11 microbatches, only to be looked at."""
    world = World(tmp_path_factory.mktemp("busy"), ManualClock())
    world.publish(*log(versions=11, seed=4))
    world.runner(EngineFactory("embedded"), max_messages=1).once()
    return world


def look(world: World, now: int = NOW) -> BatcherStatus:
    """Return the status."""
    return status(world.depot, world.ledger, now)


def forget(location: str) -> None:
    """Delete the files that later commits removed."""
    DeltaTable(location).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


class TestWaiting:
    def test_new_ledger(self, world, embedded):
        """A ledger that has read nothing shows every depot version with messages as waiting, and zeros."""
        world.publish(*log(versions=2))
        world.runner(embedded)
        status = look(world)
        assert (status.depots[0].version, status.depots[0].read_version) == (2, -1)
        assert (status.depots[0].versions_waiting, status.depots[0].messages_waiting) == (2, 60)
        assert status.depots[0].oldest_waiting_version == 1
        assert (status.open.batch_count, status.open.oldest, status.closed.batch_count, status.clocks) == (
            0,
            None,
            0,
            (),
        )
        assert (status.rejections, status.microbatches, status.totals.message_count) == ((), (), 0)
        assert count_waiting(world.depot, world.ledger) == 60

    def test_lag(self, world, embedded):
        """Lag is what waits, and the time since the oldest of it was committed; nothing when nothing waits."""
        world.publish(*log(versions=1))
        world.runner(embedded).once()
        assert look(world, now=2 * NOW).lag == look(world).lag
        assert (look(world).lag.message_count, look(world).lag.seconds) == (0, 0.0)
        world.publish(*log(versions=2, seed=2))
        committed = {commit["version"]: commit["timestamp"] * 1_000 for commit in DeltaTable(world.depot).history()}
        status = look(world, committed[2] + 90 * SECOND)
        assert (status.lag.message_count, status.lag.seconds) == (60, 90.0)
        assert look(world, committed[2] - SECOND).lag.seconds == 0.0

    def test_versions_without_rows(self, world, embedded):
        """Depot versions without rows (OPTIMIZE, VACUUM, properties) do not wait."""
        world.publish(*log(versions=2))
        world.runner(embedded).once()
        DeltaTable(world.depot).optimize.compact()
        DeltaTable(world.depot).alter.set_table_properties({"delta.appendOnly": "true"})
        forget(world.depot)
        status = look(world)
        assert status.depots[0].version > status.depots[0].read_version
        assert (status.depots[0].versions_waiting, status.lag.message_count, status.lag.seconds) == (0, 0, 0.0)

    @pytest.mark.ci
    @pytest.mark.parametrize(
        "change",
        [
            lambda depot: DeltaTable(depot).delete("type = 'a'"),
            lambda depot: DeltaTable(depot).update(updates={"payload": "'x'"}, predicate="type = 'a'"),
            lambda depot: write_deltalake(depot, table(log(versions=1)[0]), mode="overwrite"),
            lambda depot: DeltaTable(depot).restore(1),
        ],
        ids=["DELETE", "UPDATE", "overwrite", "RESTORE"],
    )
    def test_next_stop(self, world, embedded, change):
        """A version that removed or changed rows is foretold until it is read or ignored."""
        world.publish(*log(versions=2))
        world.runner(embedded).once()
        DeltaTable(world.depot).optimize.compact()
        DeltaTable(world.depot).delete("type = 'never'")
        assert look(world).depots[0].changed_version is None
        change(world.depot)
        changed = DeltaTable(world.depot).version()
        world.publish(*log(versions=1, seed=2))
        assert look(world).depots[0].changed_version == changed
        with pytest.raises((DepotChangedError, DepotUnreadableError)):
            world.runner(embedded, max_retries=0).once()
        world.runner(embedded, on_depot_change="ignore").once()
        assert look(world).depots[0].changed_version is None

    def test_count_not_said(self, world, embedded):
        """Where a commit does not say how many rows it added, the number of messages that wait is not known."""
        world.runner(embedded)
        world.publish([message()])
        merger = DeltaTable(world.depot).merge(table([message(), message("b")]), "t.type = s.type", "s", "t")
        merger.when_not_matched_insert_all().when_matched_update_all().execute()
        status = look(world)
        assert (status.depots[0].versions_waiting, status.depots[0].messages_waiting, status.lag.message_count) == (
            2,
            None,
            None,
        )
        assert count_waiting(world.depot, world.ledger) is None

    def test_without_tables(self, world, tmp_path):
        """Before there is a ledger everything waits; without a depot, or with one that is not local, nobody can say."""
        world.publish(*log(versions=1))
        assert count_waiting(world.depot, world.ledger) == 30
        assert count_waiting(str(tmp_path / "nowhere"), world.ledger) is None
        assert count_waiting("s3://bucket/depot", world.ledger) is None


class TestStatus:
    def test_counts(self, busy):
        """Open, closed and rejected are counted as they stand in the ledger, and add up to what was read."""
        status = look(busy)
        rows = {state: busy.rows(state) for state in ("open", "closed", "rejected")}
        assert status.open.batch_count == len(rows["open"]) > 0
        assert status.open.message_count == sum(row["message_count"] for row in rows["open"])
        assert status.closed.batch_count == len(rows["closed"]) > 0
        assert status.closed.message_count == sum(row["message_count"] for row in rows["closed"])
        assert (
            status.totals.message_count
            == status.open.message_count + status.closed.message_count + len(rows["rejected"])
            == 330
        )
        assert status.totals.rejected == len(rows["rejected"])
        assert status.totals.opened - status.totals.closed == status.open.batch_count

    def test_rejected(self, busy):
        """Rejections are counted by reason, the most frequent first, each with how far the worst was off."""
        rows = busy.rows("rejected")
        expected = {
            reason: [row for row in rows if row["reason"] == reason] for reason in {row["reason"] for row in rows}
        }
        counts = look(busy).rejections
        assert {count.reason: count.message_count for count in counts} == {
            reason: len(those) for reason, those in expected.items()
        }
        assert all(count.missed_by_us == max(row["missed_by_us"] for row in expected[count.reason]) for count in counts)
        assert [count.message_count for count in counts] == sorted(
            (count.message_count for count in counts), reverse=True
        )
        assert {"too_old", "too_far_ahead", "duplicate", "invalid", "clock_ahead"} == {count.reason for count in counts}

    def test_microbatches(self, busy):
        """The ten latest microbatches are listed, the latest first, as the history recorded them."""
        status = look(busy)
        assert [microbatch.microbatch for microbatch in status.microbatches] == list(range(11, 1, -1))
        assert status.totals.microbatch_count == 11
        row, shown = busy.history()[-1], asdict(status.microbatches[0])
        assert shown.pop("started_at") == "2023-11-14T22:13:20Z"
        assert shown.pop("message_count") == row["messages_read"]
        assert shown.pop("depot") is None
        assert shown == {name: row[name] for name in shown}

    def test_clocks(self, busy):
        """Each source is shown with its clock and floor, and when its last data was read."""
        clocks = {source_clock.source: source_clock for source_clock in look(busy).clocks}
        assert list(clocks) == ["", "s%2", "s/1"]
        for source, (clock, floor) in busy.clocks().items():
            assert clocks[source].clock == clock.isoformat().removesuffix("+00:00").rstrip("0").rstrip(".") + "Z"
            assert clocks[source].floor == floor.isoformat().removesuffix("+00:00").rstrip("0").rstrip(".") + "Z"
            assert clocks[source].seen_at == "2023-11-14T22:13:20Z"

    def test_oldest(self, busy):
        """The oldest open batch is the one whose window began first."""
        oldest = look(busy).open.oldest
        row = min(busy.rows("open"), key=lambda row: (row["window_start"], row["id"]))
        assert (oldest.id, oldest.source, oldest.key) == (row["id"], row["source"], row["key"])

    def test_oldest_waits_for_the_clock_of_its_source(self, world, embedded):
        """It says how far the clock of its source is before the timeout, and 0 behind it."""
        world.publish([message("a")])
        world.runner(embedded).once()
        world.clock.advance(HOUR)
        oldest = look(world).open.oldest
        assert (oldest.floor, oldest.timeout_at, oldest.remaining_seconds) == (
            "2023-11-14T22:13:20Z",
            "2023-11-14T22:13:30Z",
            10.0,
        )

    def test_json(self, busy):
        """A status is a document that JSON knows."""
        shown = json.loads(json.dumps(asdict(look(busy))))
        assert shown["rules"] == {
            "window": "10s",
            "max_delay": "5s",
            "max_lead": "1s",
            "max_batch_bytes": 16_777_216,
            "window_anchor": "arrival",
            "on_repeat": "split",
            "split_at": "message",
            "window_offset": "0s",
        }
        assert (shown["depots"][0]["start_from"], shown["ledger"]["paused"]) == ("beginning", False)

    @pytest.mark.ci
    def test_reach(self, busy, tmp_path, clock):
        """Replay and verify reach back to the beginning, until VACUUM or a clean-up of the log forgets it."""
        assert look(busy).depots[0].readable_range == look(busy).ledger.readable_range == ReadableRange(0, "90d")
        shutil.copytree(Path(busy.depot).parent, tmp_path, dirs_exist_ok=True)
        world = World(tmp_path, clock)
        fold(world.tables(EMBEDDED).ledger)
        latest = world.version()
        forget(world.ledger)
        assert look(world).ledger.readable_range.version == latest
        DeltaTable(world.depot).optimize.compact()
        forget(world.depot)
        assert look(world).depots[0].readable_range.version == 12
        DeltaTable(world.ledger).create_checkpoint()
        for version in range(world.version()):
            (Path(world.ledger) / "_delta_log" / f"{version:020}.json").unlink()
        assert look(world).ledger.readable_range.version == world.version() > latest

    def test_feed_switched_on_later(self, tmp_path, clock, embedded):
        """A depot whose change feed was switched on later can be read from its beginning, by its files."""
        depot = str(tmp_path / "depot")
        write_deltalake(depot, table([message()]))
        DeltaTable(depot).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        world = World(tmp_path, clock)
        world.runner(embedded, start_from="end")
        assert look(world).depots[0].readable_range.version == 0


class TestTooOld:
    @pytest.fixture
    def late(self, world: World, embedded: EngineFactory) -> World:
        """Two devices that share a clock: the messages of the slow one come 12 s after those of the fast one."""
        fast = [message("a", NOW + at * SECOND, NOW + at * SECOND, key="fast") for at in range(30)]
        slow = [message("a", NOW + at * SECOND, NOW + at * SECOND, key="slow") for at in range(10, 18)]
        world.publish(fast, slow)
        world.runner(embedded, max_messages=30).once()
        return world

    def test_needed_delay(self, late, embedded):
        """With the delay that is needed no message would have been too old, with a microsecond less one would."""
        needed = look(late).needed_delay
        assert (needed.max_delay_us, needed.required_max_delay_us, needed.by_source) == (
            5 * SECOND,
            19 * SECOND,
            {"": 19 * SECOND},
        )
        rows = [row for row in late.rows("rejected") if row["reason"] == "too_old"]
        assert needed.required_max_delay_us == needed.max_delay_us + max(row["missed_by_us"] for row in rows)
        arrived = late.arrived()
        for delay, refused in ((needed.required_max_delay_us, 0), (needed.required_max_delay_us - 1, 1)):
            rejected = batch_messages(arrived, Rules(window=HOUR, max_delay=delay)).rejected
            assert rejected["reason"].to_pylist() == ["too_old"] * refused

    def test_wrong_clocks(self, world, embedded):
        """Neither a source whose clock is wrong nor a message of another month counts; how many these are is said."""
        late = [message("a", NOW - at * SECOND, NOW + at, source="late") for at in range(206)]
        world.publish(late, [message("a", NOW - HOUR + at, NOW + at, source="wrong") for at in range(300)])
        punctual = [message("b", NOW + at, NOW + at, source="late") for at in range(100)]
        world.publish([*punctual, message("b", 0, NOW + 100, source="late")])
        world.runner(embedded).once()
        needed = look(world).needed_delay
        assert (needed.by_source, needed.left_out) == ({"late": needed.required_max_delay_us}, 301)
        assert round(needed.required_max_delay_us / SECOND) == 205

    def test_all_wrong(self, world, embedded):
        """If nearly all messages of most sources are too old, the rules are to blame, and their messages count."""
        world.publish([message("a", NOW - HOUR + at, NOW + at) for at in range(300)])
        world.runner(embedded).once()
        needed = look(world).needed_delay
        assert (needed.required_max_delay_us, needed.left_out) == (HOUR, 0)

    def test_other_rules(self, world, embedded):
        """What was too old under rules of before is no reason for another `max_delay`."""
        world.publish([message("a", NOW, NOW), message("b", NOW - HOUR, NOW)])
        world.runner(embedded).once()
        assert look(world).needed_delay.required_max_delay_us == HOUR
        world.runner(embedded, rules={"max_delay": "2h", "window": "3h"}).once()
        world.publish([message("c", NOW, NOW)])
        world.runner(embedded, rules={"max_delay": "2h", "window": "3h"}).once()
        assert look(world).needed_delay.required_max_delay_us is None

    def test_nothing_too_old(self, world, embedded):
        """Without messages that were too old no delay is needed."""
        world.publish([message()])
        world.runner(embedded).once()
        needed = look(world).needed_delay
        assert (needed.required_max_delay_us, needed.by_source) == (None, {})

    def test_source_mapped(self, world, embedded):
        """Messages that came too late by themselves, or of mapped sources, are no reason for that advice."""
        world.publish([message("a", NOW - MILLISECOND * 6_000 * at, source="") for at in range(4)])
        world.runner(embedded).once()
        assert (look(world).rejections[0].message_count, look(world).hints) == (3, ())
        world.publish(
            [message("a", NOW, NOW, source="device"), message("b", NOW + MINUTE, NOW + MINUTE)], [message("c")]
        )
        world.runner(embedded).once()
        assert look(world).hints == ()


class TestBatches:
    @pytest.fixture
    def mixed(self, world: World, embedded: EngineFactory) -> World:
        """Tables with open and closed batches of some keys."""
        world.publish(*log(versions=6, seed=5))
        world.runner(embedded).once()
        return world

    @pytest.mark.parametrize("state", ["open", "closed"])
    def test_batch(self, mixed, state):
        """A batch is shown with all its columns and messages, times as text with their zone."""
        row = mixed.rows(state)[0]
        result = batch(mixed.ledger, row["id"])
        assert set(result) - {"closing"} == {name for name, _ in tables.batch_fields(pa.string())}
        assert result["window_start"].endswith("Z")
        assert [message["payload"] for message in result["messages"]] == [
            message["payload"] for message in row["messages"]
        ]
        assert all(message["event_time"].endswith("Z") for message in result["messages"])
        assert (state == "open") == ("closing" in result)
        json.dumps(result)

    def test_when_it_closes(self, world, embedded):
        """An open batch closes with the first message at its timeout, not a microsecond before."""
        world.publish([message("a", key="k")])
        world.runner(embedded).once()
        (open_batch,) = batches(world.ledger, "open")
        assert (open_batch["timeout_at"], open_batch["closing"]["remaining_seconds"]) == ("2023-11-14T22:13:30Z", 10.0)
        assert "is 10 s before" in open_batch["closing"]["reason"]
        for at, state in ((NOW + 10 * SECOND - 1, "open"), (NOW + 10 * SECOND, "closed")):
            world.publish([message("a", at, at, key="other")])
            world.runner(embedded).once()
            assert batch(world.ledger, open_batch["id"])["state"] == state

    @pytest.mark.parametrize(("grace", "at"), [("10s", 20), ("1m", 70)])
    def test_when_the_idle_tick_closes_it(self, world, embedded, grace, at):
        """An idle tick closes an open batch at the moment that is said, not a microsecond before."""
        world.publish([message("a")])
        world.runner(embedded, idle_timeout=grace).once()
        (open_batch,) = batches(world.ledger, "open", idle_timeout=(at - 10) * SECOND)
        assert open_batch["closing"]["idle_tick_at"] == f"2023-11-14T22:{13 + (20 + at) // 60}:{(20 + at) % 60}Z"
        for now, state in ((NOW + at * SECOND - 1, "open"), (NOW + at * SECOND, "closed")):
            world.clock.set(now)
            world.runner(embedded, idle_timeout=grace).once()
            assert batch(world.ledger, open_batch["id"])["state"] == state

    def test_no_idle_tick(self, mixed):
        """Without idle ticks only a message closes an open batch."""
        open_batch = batches(mixed.ledger, "open", idle_timeout=None)[0]
        assert open_batch["closing"]["idle_tick_at"] is None
        assert "without one" not in open_batch["closing"]["closes"]

    def test_timeout_follows_the_rules(self, world, embedded):
        """The timeout shown for an open batch is that of the rules in force, also when it was written under others."""
        world.publish([message("a")])
        world.runner(embedded).once()
        world.runner(embedded, rules={"max_delay": "8s"}).once()
        assert world.kinds() == ["data", "rules"]
        (open_batch,) = batches(world.ledger, "open")
        assert open_batch["timeout_at"] == look(world).open.oldest.timeout_at == "2023-11-14T22:13:33Z"
        assert open_batch["closing"]["remaining_seconds"] == 10.0

    def test_list(self, mixed):
        """Open batches are listed from the one that began first, closed ones from the last, up to the limit."""
        for state, latest_first in (("open", False), ("closed", True)):
            rows = sorted(mixed.rows(state), key=lambda row: row["id"])
            rows.sort(key=lambda row: row["window_start"], reverse=latest_first)
            expected = [row["id"] for row in rows]
            assert [row["id"] for row in batches(mixed.ledger, state, limit=100)] == expected
            assert [row["id"] for row in batches(mixed.ledger, state, limit=2)] == expected[:2]
            of_key = [row["id"] for row in rows if (row["source"], row["key"]) == ("s/1", "k")]
            assert [row["id"] for row in batches(mixed.ledger, state, key="k", source="s/1", limit=100)] == of_key
        assert batches(mixed.ledger, "open", key="nobody") == []

    def test_quoting(self, world, embedded):
        """Keys are compared as they are, whatever is in them."""
        keys = ["it's", "a/b", "100%", "\N{SNOWMAN}", "' OR true --"]
        world.publish([message("a", key=key) for key in keys])
        world.runner(embedded).once()
        for key in keys:
            (open_batch,) = batches(world.ledger, "open", key=key)
            assert (open_batch["key"], batch(world.ledger, open_batch["id"])["id"]) == (key, open_batch["id"])

    def test_parts(self, world, embedded):
        """Each part of a window is a batch of its own."""
        world.publish([message(kind, payload="x" * 10) for kind in "abc"], [message("a", NOW + MINUTE, NOW + MINUTE)])
        world.runner(embedded, rules={"max_batch_bytes": 25}).once()
        listed = batches(world.ledger, "closed")
        assert [(row["part"], row["message_count"]) for row in listed] == [(0, 2), (1, 1)]
        assert [batch(world.ledger, row["id"]) for row in listed] == listed

    def test_not_found(self, mixed):
        """An unknown batch is answered with the nearest one of its stream, an id of another form with the form."""
        row = mixed.rows("closed")[0]
        name, _, part = row["id"].rsplit("/", 2)
        with pytest.raises(NotFoundError) as unknown:
            batch(mixed.ledger, f"{name}/{NOW - DAY}/{part}")
        nearest = min(
            (each for each in mixed.rows("open", "closed") if each["id"].startswith(name + "/")),
            key=lambda each: each["window_start"],
        )
        assert unknown.value.hint.startswith(f"Its nearest batch is {nearest['id']}, ")
        with pytest.raises(NotFoundError, match="Its stream has no batches"):
            batch(mixed.ledger, f"batch/s/nobody/{NOW}/0")
        with pytest.raises(NotFoundError, match="batch/SOURCE/KEY/WINDOW_START/PART"):
            batch(mixed.ledger, "k")

    def test_bytes(self, tmp_path, clock, embedded):
        """Binary payloads are shown as text where they are, else as base64."""
        world = World(tmp_path / "binary", clock, pa.binary())
        world.publish(
            [message(kind, payload=payload) for kind, payload in zip("abc", [b"text", b"\xff", None], strict=True)]
        )
        world.runner(embedded).once()
        (open_batch,) = batches(world.ledger, "open")
        assert [message["payload"] for message in open_batch["messages"]] == ["text", "base64:/w==", None]


def arrival(row):
    """Return when a message arrived, for sorting; one without a stamp last of all."""
    return row["received_at"].timestamp() if row["received_at"] else float("-inf")


class TestRejections:
    def test_list(self, world, embedded):
        """Rejected messages are listed with their content, the latest first, of a key or reason if asked."""
        world.publish(*log(versions=6, seed=6))
        world.runner(embedded, max_messages=60).once()
        rows = sorted(world.rows("rejected"), key=lambda row: (-row["microbatch"], -arrival(row), row["id"]))
        listed = rejections(world.ledger, limit=1_000)
        assert [row["id"] for row in listed] == [row["id"] for row in rows]
        assert [row["id"] for row in rejections(world.ledger, limit=3)] == [row["id"] for row in rows[:3]]
        assert {row["reason"] for row in rejections(world.ledger, reason="too_old")} == {"too_old"}
        assert {row["key"] for row in rejections(world.ledger, key="ahead")} == {"ahead"}
        assert {name for name, _ in tables.rejected_fields(pa.string())} == set(listed[0])
        assert rejection(world.ledger, listed[0]["id"]) == listed[0]
        json.dumps(listed)

    def test_any_time(self, world, embedded):
        """A message that was rejected because its time is out of any calendar is shown all the same."""
        world.publish([message("a", event_time=2**62), message("b", event_time=None)])
        world.runner(embedded).once()
        times = {row["type"]: row["event_time"] for row in rejections(world.ledger, reason="invalid")}
        assert times == {"a": f"{2**62} us", "b": None}

    def test_not_found(self, world, embedded):
        """An unknown rejection is answered with the command that lists them."""
        world.runner(embedded)
        with pytest.raises(NotFoundError, match="windrow show --rejected"):
            rejection(world.ledger, "rejected/1//k/0")


class TestTables:
    def test_missing(self, world, embedded, tmp_path):
        """A missing depot or ledger is named, with the command that creates it."""
        nowhere = str(tmp_path / "nowhere")
        with pytest.raises(TableMissingError, match=r"no ledger at .*nowhere[\s\S]*windrow init"):
            status(world.depot, nowhere, NOW)
        with pytest.raises(TableMissingError, match="no ledger"):
            batches(nowhere, "open")
        world.runner(embedded)
        with pytest.raises(TableMissingError, match=r"no depot at .*nowhere[\s\S]*windrow ingest"):
            status(nowhere, world.ledger, NOW)

    def test_refused(self, world, tmp_path):
        """A Delta table that is no ledger is refused, also when it is partitioned by a `state` of its own."""
        foreign = str(tmp_path / "foreign")
        write_deltalake(foreign, pa.table({"id": ["a"], "state": ["open"]}), partition_by=["state"])
        for location in (world.depot, foreign):
            with pytest.raises(IncompatibleTableError, match="not a ledger"):
                status(world.depot, location, NOW)

    def test_schema_version(self, world, embedded, tmp_path):
        """Whoever reads a ledger of another schema version refuses it before its rows are read."""
        world.publish([message("a", NOW, NOW)])
        world.runner(embedded).once()
        DeltaTable(world.ledger).update(updates={"schema_version": "4"}, predicate="id = 'progress'")
        readers = (batches, rejections, history, read_closed, digests, time_range)
        calls = [partial(reader, world.ledger) for reader in readers]
        calls[0] = partial(batches, world.ledger, "open")
        calls += [partial(export, world.ledger, str(tmp_path / "a.csv")), partial(quality.check, None, world.ledger)]
        calls += [partial(status, world.depot, world.ledger, NOW), partial(verify, world.depot, world.ledger)]
        for call in calls:
            with pytest.raises(IncompatibleTableError, match="schema version 4"):
                call()

    def test_other_depot(self, world, embedded, tmp_path, clock):
        """The status of a ledger with a depot that it does not read is refused."""
        world.runner(embedded)
        other = World(tmp_path / "other", clock)
        with pytest.raises(DepotMismatchError):
            status(other.depot, world.ledger, NOW)

    def test_light(self, world, embedded):
        """Reading imports none of the heavy packages, so that `windrow status` answers at once."""
        world.publish(*log(versions=2))
        world.runner(embedded).once()
        heavy = ["numba", "pandas", "pyspark", "sqlglot"]
        code = (
            "import sys; from windrow.reading import batches, rejections, status; "
            f"status({world.depot!r}, {world.ledger!r}, 0); batches({world.ledger!r}, 'open'); "
            f"batches({world.ledger!r}, 'closed'); rejections({world.ledger!r}); "
            f"print([name for name in {heavy} if name in sys.modules])"
        )
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"

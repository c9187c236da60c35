"""Where a message went: every arrival of it, in order, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import HOUR, SECOND, log, message, table
from windrow.errors import ExpressionError, NotFoundError
from windrow.reading import Arrival, trace
from windrow.reading.feed import recent

FEED = "delta.enableChangeDataFeed"


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)


def find(world: World, at: int = NOW, type_: str | None = "a", source: str | None = None) -> list[Arrival]:
    """Return where the messages of key k went."""
    return trace(world.depot, world.ledger, "k", at, type_, source)


def outcomes(arrivals: list[Arrival]) -> list[tuple[int | None, str]]:
    """Return depot version and outcome of each arrival; for a rejected one the reason."""
    return [
        (arrival.depot_version, arrival.rejection["reason"] if arrival.rejection else arrival.outcome)
        for arrival in arrivals
    ]


class TestOutcomes:
    def test_open_and_closed(self, world: World, embedded: EngineFactory) -> None:
        """A message in a batch is found with its batch, its depot version and the microbatch that read it."""
        world.publish([message()], [message("b", NOW + SECOND, NOW + SECOND)])
        world.runner(embedded, max_messages=1).once()
        [arrival] = find(world)
        [batch] = world.rows("open")
        assert (arrival.outcome, arrival.depot_version, arrival.microbatch) == ("open", 1, 1)
        assert arrival.batch is not None
        assert (arrival.batch["id"], arrival.batch["closed_at"]) == (batch["id"], None)
        [other] = find(world, NOW + SECOND, "b")
        assert (other.depot_version, other.microbatch, other.batch) == (2, 2, arrival.batch)
        world.runner(embedded).flush()
        [arrival] = find(world)
        assert arrival.batch is not None
        assert (arrival.outcome, arrival.batch["close_reason"], arrival.batch["closed_microbatch"]) == (
            "closed",
            "flush",
            3,
        )

    def test_rejected(self, world: World, embedded: EngineFactory) -> None:
        """A rejected message is found with its reason under the rules of its microbatch, not those of today."""
        world.publish([message("b", NOW + 7 * SECOND, NOW + 7 * SECOND), message("a", NOW, NOW + 7 * SECOND)])
        world.runner(embedded).once()
        world.runner(embedded, rules={"window": "1m", "max_delay": "30s"}).once()
        [arrival] = find(world)
        assert outcomes([arrival]) == [(1, "too_old")]
        assert (arrival.why, arrival.hint) == (
            "max_delay was 5 s; it came 7 s after its time",
            'max_delay = "7s" would have kept it',
        )
        assert arrival.rejection is not None
        assert arrival.rejection["id"] == world.rows("rejected")[0]["id"]

    def test_waiting(self, world: World, embedded: EngineFactory) -> None:
        """A message that no microbatch has read yet is said to wait in its depot version."""
        world.runner(embedded).once()
        world.publish([message()])
        [arrival] = find(world)
        assert outcomes([arrival]) == [(1, "waiting")]
        assert arrival.why == "it waits in depot version 1; the ledger has read nothing yet"
        assert arrival.hint == "`windrow run` reads it"
        world.runner(embedded).once()
        world.publish([message("b")])
        assert find(world, type_="b")[0].why == "it waits in depot version 2; the ledger has read up to 1"

    def test_before_the_ledger_began(self, world: World, embedded: EngineFactory) -> None:
        """A message of a version before start_from was never read, and is not called lost."""
        world.publish([message()])
        world.runner(embedded, start_from="end").once()
        world.publish([message("b")])
        world.runner(embedded, start_from="end").once()
        [arrival] = find(world)
        assert outcomes([arrival]) == [(1, "skipped")]
        assert "the ledger began later (end)" in arrival.why

    def test_lost(self, world: World, embedded: EngineFactory) -> None:
        """A message that was read and is not in the ledger is called lost, and verify is named."""
        world.publish([message()])
        world.runner(embedded).once()
        DeltaTable(world.ledger).delete("state = 'open'")
        [arrival] = find(world)
        assert outcomes([arrival]) == [(1, "lost")]
        assert "windrow verify" in arrival.hint

    def test_not_there(self, world: World, embedded: EngineFactory) -> None:
        """A message that the depot does not have is an error that names the nearest ones of the same kind."""
        world.publish([message("a", NOW + SECOND), message("b", NOW + 1)])
        world.runner(embedded).once()
        with pytest.raises(
            NotFoundError, match=r"no message of key 'k', type 'a' at 2023-11-14T22:13:20Z.*up to 1\n"
        ) as error:
            find(world)
        assert error.value.hint == (
            "The nearest are at 2023-11-14T22:13:21Z. Its nearest batch is batch//k/1699999995000000/0, "
            "2023-11-14T22:13:15Z to 2023-11-14T22:13:25Z."
        )
        with pytest.raises(NotFoundError, match="none at any other time"):
            find(world, type_="z")


class TestArrivals:
    def test_order_of_arrival(self, world: World, embedded: EngineFactory) -> None:
        """All arrivals of one identity are listed in the order in which they came: early, accepted, again, too late."""
        early = message(received_at=NOW - 2 * SECOND)
        world.publish([early], [message()], [message(payload="2"), message(payload="1")])
        world.publish([message(received_at=NOW + HOUR), message("b", NOW + HOUR, NOW + HOUR)])
        clock = world.clock
        clock.advance(HOUR)
        world.runner(embedded).once()
        path = find(world)
        assert outcomes(path) == [
            (1, "too_far_ahead"),
            (2, "closed"),
            (3, "duplicate"),
            (3, "duplicate"),
            (4, "too_old"),
        ]
        assert path[1].batch is not None
        assert path[1].batch["id"] in path[2].why

    def test_twins(self, world: World, embedded: EngineFactory) -> None:
        """Of messages that are equal in everything one is in a batch and the others are duplicates."""
        world.publish([message(), message(), message()], [message()])
        world.runner(embedded).once()
        assert outcomes(find(world)) == [(1, "open"), (1, "duplicate"), (1, "duplicate"), (2, "duplicate")]

    def test_rejected_first_accepted_later(self, world: World, embedded: EngineFactory) -> None:
        """An equal message that was too early and came again when the clock had moved is told apart by its version."""
        early = message(received_at=NOW - 2 * SECOND)
        world.publish([early], [message("b")], [early])
        world.runner(embedded).once()
        assert outcomes(find(world)) == [(1, "too_far_ahead"), (3, "open")]

    def test_sources_and_types(self, world: World, embedded: EngineFactory) -> None:
        """Without a source or a type all of them are listed; with one only that."""
        world.publish([message(source="x"), message(source="y"), message("b", source="x")])
        world.runner(embedded).once()
        path = find(world, type_=None)
        assert sorted((arrival.source or "", arrival.type or "") for arrival in path) == [
            ("x", "a"),
            ("x", "b"),
            ("y", "a"),
        ]
        assert [arrival.source for arrival in find(world, source="y")] == ["y"]

    def test_everything_in_a_log(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """Of every identity in a log with all that happens, each arrival is found once, none lost."""
        world = World(tmp_path, clock)
        world.publish(*log(versions=2, seed=3))
        world.runner(embedded, max_messages=1).once()
        arrived = world.arrived()
        whole = arrived.filter(pc.and_(pc.is_valid(arrived["key"]), pc.is_valid(arrived["event_time"])))
        counted: Counter[str] = Counter()
        for identity in whole.group_by(["key", "event_time"]).aggregate([([], "count_all")]).to_pylist():
            at = pa.scalar(identity["event_time"], pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()
            arrivals = trace(world.depot, world.ledger, identity["key"], at)
            assert len(arrivals) == identity["count_all"]
            assert [arrival.depot_version for arrival in arrivals] == sorted(
                arrival.depot_version or 0 for arrival in arrivals
            )
            counted.update(arrival.outcome for arrival in arrivals)
        counts = {state: sum(row["message_count"] for row in world.rows(state)) for state in ("open", "closed")}
        refused = [row for row in world.rows("rejected") if row["key"] is not None and row["event_time"] is not None]
        assert counted == Counter({**counts, "rejected": len(refused)})


class TestDepots:
    def test_forgotten_versions(self, world: World, embedded: EngineFactory) -> None:
        """Where the depot can no longer be read, what the ledger knows is said, with the versions it knows."""
        world.publish([message(), message()])
        world.runner(embedded).once()
        for name in Path(world.depot).glob("*.parquet"):
            name.unlink()
        assert outcomes(find(world)) == [(None, "open"), (1, "duplicate")]

    def test_feed_switched_on_later(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """Messages from before the change feed was switched on are found, and so are those that wait."""
        world = World(tmp_path, clock)
        world.depot = str(tmp_path / "without")
        write_deltalake(world.depot, table([message()]))
        DeltaTable(world.depot).alter.set_table_properties({FEED: "true"})
        world.runner(embedded).once()
        write_deltalake(world.depot, table([message("a", NOW + SECOND)]), mode="append")
        assert outcomes(find(world)) == [(0, "open")]
        assert outcomes(find(world, NOW + SECOND)) == [(2, "waiting")]

    def test_accepted(self, world: World, embedded: EngineFactory) -> None:
        """A message of a version that a run went past is not in the ledger for that reason."""
        world.publish([message("b")])
        write_deltalake(world.depot, table([message()]), mode="overwrite")
        world.runner(embedded).skip_version(2)
        [arrival] = find(world)
        assert outcomes([arrival]) == [(2, "skipped")]
        assert "--skip-version 2" in arrival.why

    def test_accepted_without_a_feed(self, world: World, embedded: EngineFactory) -> None:
        """Beside a version that a run went past, and whose rows nobody recorded, all other messages are found."""
        world.publish([message(), message("b")])
        DeltaTable(world.depot).alter.set_table_properties({FEED: "false"})
        DeltaTable(world.depot).delete("type = 'a'")
        runner = world.runner(embedded)
        runner.skip_version(3)
        world.publish([message("c")])
        runner.once()
        assert outcomes(find(world)) == [(1, "open")]
        assert outcomes(find(world, type_="c")) == [(4, "open")]
        assert recent(world.depot).messages["version"].to_pylist() == [1, 1, 4]

    def test_without_the_columns_that_may_be_absent(self, tmp_path: Path, embedded: EngineFactory) -> None:
        """A depot without source, sequence and payload is searched by what it has."""
        messages = table([message()]).drop_columns(["source", "sequence", "payload"])
        depot, ledger = str(tmp_path / "bare"), str(tmp_path / "ledger")
        write_deltalake(depot, messages, configuration={"delta.enableChangeDataFeed": "true"})
        world = World(tmp_path, ManualClock())
        world.depot, world.ledger = depot, ledger
        world.runner(embedded).once()
        assert outcomes(find(world, source="")) == [(0, "open")]
        with pytest.raises(NotFoundError):
            find(world, source="other")

    def test_columns_of_its_own(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """A depot with other columns is searched through its mapping, or else the ledger is asked alone."""
        messages = table([message(), message("b"), message(key="l")]).rename_columns(
            ["source", "device", "type", "event_time", "received_at", "sequence", "payload"]
        )
        world = World(tmp_path, clock)
        world.depot = str(tmp_path / "own")
        for _ in range(2):
            write_deltalake(world.depot, messages, mode="append", configuration={"delta.enableChangeDataFeed": "true"})
        columns = {"key": "upper(device)"}
        world.runner(embedded, depot_columns=columns).once()
        assert outcomes(trace(world.depot, world.ledger, "K", NOW, "a", "", columns)) == [(0, "open"), (1, "duplicate")]
        unknown = {"key": "soundex(device)"}
        alone = trace(world.depot, world.ledger, "K", NOW, "a", "", unknown)
        assert outcomes(alone) == [(None, "open"), (1, "duplicate")]
        with pytest.raises(ExpressionError):
            trace(world.depot, world.ledger, "Z", NOW, "a", "", unknown)
        with pytest.raises(NotFoundError):
            trace(world.depot, world.ledger, "Z", NOW, "a", "", columns)

    def test_bytes(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """Payloads of bytes are told apart and shown as text that JSON knows."""
        world = World(tmp_path, clock, pa.binary())
        world.publish([message(payload=b"\xff"), message(payload=b"1")])  # type: ignore[arg-type]
        world.runner(embedded).once()
        assert {arrival.payload for arrival in find(world)} == {"base64:/w==", "1"}
        assert sorted(outcomes(find(world))) == [(1, "duplicate"), (1, "open")]

    def test_quotes(self, world: World, embedded: EngineFactory) -> None:
        """A key with quotes is a key like others."""
        world.publish([message(key='it\'s "k"')])
        world.runner(embedded).once()
        assert len(trace(world.depot, world.ledger, 'it\'s "k"', NOW)) == 1

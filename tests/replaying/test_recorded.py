"""What a replay takes from the record: where the ledger began, how columns were mapped, what was ahead of the clock."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import SKEW, World
from tests.messages import SECOND, log, message
from windrow.delta.table import OPEN_TABLES
from windrow.errors import DepotUnreadableError
from windrow.replaying import EARLIER, ReplayRange
from windrow.verify import verify

TIME = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize("start_from", ["version:3", "records-ago:40", "end"])
def test_start(world: World, embedded: EngineFactory, tmp_path: Path, start_from: str) -> None:
    """A replay begins where the ledger began, also where that was counted or was the end of then, and is sound."""
    versions = log(versions=6)
    world.publish(*versions[:4])
    world.runner(embedded, start_from=start_from).once()
    world.publish(*versions[4:])
    world.runner(embedded).once()
    result = world.replayed(str(tmp_path / "again"))
    assert result.equal, result.comparison
    assert result.first_depot_version > 1
    assert verify(world.depot, str(tmp_path / "again")).differences == ()


def test_mapping(world: World, embedded: EngineFactory) -> None:
    """Each version is mapped as it was when it was read, whatever the settings say now."""
    world.depot += "-of-another-form"
    columns = {"key": "device", "type": "kind", "event_time": "at", "received_at": "at", "payload": "value"}
    for number, payload in enumerate(["value", "upper(value)"]):
        at = pa.array([NOW + number * SECOND], TIME)
        rows = pa.table({"device": ["k"], "kind": [f"t{number}"], "at": at, "value": ["x"]})
        write_deltalake(
            world.depot,
            rows,
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"} if not number else None,
        )
        world.runner(embedded, depot_columns=columns | {"payload": payload}).once()
    assert [inside["payload"] for row in world.rows("open") for inside in row["messages"]] == ["x", "X"]
    result = world.replayed(depot_columns=columns | {"payload": "lower(value)"})
    assert result.equal, result.comparison
    assert DeltaTable(world.depot).version() == result.last_depot_version


@pytest.mark.parametrize("max_messages", [1, 1_000])
def test_ahead_of_the_clock(world: World, embedded: EngineFactory, max_messages: int) -> None:
    """What was ahead of the clock is so in every replay, by as much; the same stamp, read later, was and is not."""
    ahead = message("b", NOW + SKEW + SECOND, NOW + SKEW + SECOND)
    world.publish([message("a", NOW, NOW), ahead])
    world.runner(embedded).once()
    world.clock.advance(SKEW)
    world.publish([ahead | {"type": "c"}])
    world.runner(embedded).once()
    world.clock = ManualClock(NOW * 2)
    result = world.replayed(max_messages=max_messages)
    assert result.equal, result.comparison
    assert result.recorded.rejected_by_reason == {"clock_ahead": 1}
    assert [row["missed_by_us"] for row in world.rows("rejected")] == [SECOND]


def test_accepted_version_that_the_log_forgot(world: World, embedded: EngineFactory) -> None:
    """A replay of an accepted depot version whose log entry is gone is refused, and the hint says what can be
    replayed.
    """
    world.publish(*log(versions=3))
    world.runner(embedded).once()
    DeltaTable(world.depot).delete("type = 'a'")
    world.runner(embedded).skip_version(4)
    world.publish(*log(versions=2))
    world.runner(embedded).once()
    DeltaTable(world.depot).create_checkpoint()
    for version in range(5):
        (Path(world.depot) / "_delta_log" / f"{version:020}.json").unlink()
    OPEN_TABLES.clear()
    with pytest.raises(DepotUnreadableError, match="the commit of version 4") as refused:
        world.replayed(portion=ReplayRange(start="4"))
    assert refused.value.hint == EARLIER
    assert world.replayed(portion=ReplayRange(start="5")).equal

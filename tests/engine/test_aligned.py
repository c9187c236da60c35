"""Windows on the calendar, on each engine: whole ones, and those that a flush or other rules cut short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import AlignedWorld, World
from tests.messages import SECOND, log, message, microseconds
from windrow.verify import verify

ALIGNED: dict[str, Any] = {"rules": {"window_anchor": "aligned", "on_repeat": "keep"}}


def windows(world: World) -> list[tuple[float, float]]:
    """Return the windows of all batches, in seconds after NOW."""
    bounds = [[microseconds(row[f"window_{side}"]) - NOW for side in ("start", "end")] for row in batches(world)]
    return [(start / SECOND, end / SECOND) for start, end in bounds]


def batches(world: World) -> list[dict[str, Any]]:
    """Return the batches by window."""
    return sorted(world.rows("open", "closed"), key=lambda row: row["window_start"])


@pytest.mark.slow_on_executors
def test_as_one_call(tmp_path: Path, clock: ManualClock, engine: EngineFactory) -> None:
    """In several microbatches the batches are those of one call, and each is one window of the calendar."""
    world = AlignedWorld(tmp_path, clock)
    world.publish(*log(versions=6))
    world.runner(engine, max_messages=70, **world.rules[0]).once()
    assert world.canonical() == world.expected()
    assert {(start % 10, end - start) for start, end in windows(world)} == {(3.0, 10.0)}
    assert verify(world.depot, world.ledger).differences == ()


@pytest.mark.slow_on_executors
def test_cut_short(world: World, engine: EngineFactory) -> None:
    """After a flush, in another microbatch, the rest of a window of the calendar is a window of its own."""
    world.publish([message("a", NOW + 3 * SECOND, NOW + 3 * SECOND)])
    world.runner(engine, **ALIGNED).once()
    world.runner(engine, **ALIGNED).flush()
    world.publish([message("a", NOW + at * SECOND, NOW + 11 * SECOND) for at in (7, 11)])
    world.runner(engine, **ALIGNED).once()
    assert windows(world) == [(0, 3.000001), (3.000001, 10), (10, 20)]
    assert world.replayed().equal
    assert verify(world.depot, world.ledger).differences == ()


@pytest.mark.slow_on_spark
def test_after_other_rules(world: World, engine: EngineFactory) -> None:
    """A window that other rules opened keeps its end, and what lies behind it begins later: nothing overlaps."""
    world.publish([message("a", NOW + 3 * SECOND, NOW + 3 * SECOND)])
    world.runner(engine).once()
    world.publish(
        [message("b", NOW + 9 * SECOND, NOW + 13 * SECOND)], [message("c", NOW + 31 * SECOND, NOW + 31 * SECOND)]
    )
    world.runner(engine, **ALIGNED).once()
    assert world.kinds() == ["data", "rules", "data"]
    assert windows(world) == [(-2, 8), (8, 10), (30, 40)]
    assert world.replayed().equal
    assert verify(world.depot, world.ledger).differences == ()

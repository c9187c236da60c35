"""The same log with the same record: one digest, however the replay cuts it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import NOW, ManualClock
from tests.conftest import one_in
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log, message
from windrow.expressions import ColumnMapping
from windrow.ingest.sample import COLUMNS, copy_into
from windrow.reading.digests import digests
from windrow.replaying import ReplayRange
from windrow.verify import verify

RULES: list[dict[str, Any]] = [
    {},
    {"rules": {"max_delay": "9s", "window": "20s"}},
    {"rules": {"window_anchor": "event_time"}},
    {"rules": {"split_at": "midpoint"}},
    {"rules": {"on_repeat": "keep"}},
    {"rules": {"window_anchor": "aligned", "window_offset": "1s", "on_repeat": "keep"}},
    {"rules": {"max_batch_bytes": 12}},
]
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 10_000)),
        st.tuples(st.just("run"), st.sampled_from([1, 20, 1_000])),
        st.tuples(st.just("tick"), st.sampled_from([0, 3, 30])),
        st.tuples(st.just("tick to"), st.sampled_from([-5, 0, 2])),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("pause"), st.just(0)),
        st.tuples(st.just("rules"), st.sampled_from(range(len(RULES)))),
    ),
    min_size=3,
    max_size=14,
)


def live(world: World, deeds: list[tuple[str, int]]) -> None:
    """Do to a world what can be done to a ledger."""
    rules: dict[str, Any] = {}
    for deed, number in [("publish", 1), *deeds, ("run", 50)]:
        if deed == "publish":
            world.publish(log(versions=1, seed=number, size=12, start=world.clock.now())[0])
            world.clock.advance(number % 7 * SECOND)
        elif deed == "rules":
            rules = RULES[number]
        elif deed == "run":
            world.runner(EMBEDDED, max_messages=number, **rules).once()
        elif deed == "tick":
            world.clock.advance(number * SECOND)
            world.runner(EMBEDDED, idle_timeout="1s", **rules).once()
        elif deed == "tick to":
            world.runner(EMBEDDED, **rules).tick(world.clock.now() + number * SECOND)
        elif deed == "flush":
            world.runner(EMBEDDED, **rules).flush()
        else:
            world.runner(EMBEDDED, **rules).pause()
            world.runner(EMBEDDED, **rules).resume()


class TestEqual:
    @pytest.mark.slow
    @one_in(60)
    @given(deeds=DEEDS, max_messages=st.sampled_from([1, 15, 1_000_000]), cut=st.integers(0, 6))
    def test_whatever_happened(self, deeds: list[tuple[str, int]], max_messages: int, cut: int) -> None:
        """Whatever messages, ticks, flushes, pauses and rules a ledger has seen, a replay in microbatches of any size
        gives the same digest and a sound ledger, and a replay of the replay gives it again. So does any part of the
        log, and any stream alone.
        """
        folder = Path(tempfile.mkdtemp())
        try:
            world = World(folder, ManualClock())
            live(world, deeds)
            result = world.replayed(str(folder / "again"), max_messages=max_messages)
            assert result.equal, result.comparison
            assert result.recorded.digest == digests(world.ledger).total
            assert verify(world.depot, str(folder / "again")).differences == ()
            part = (
                ReplayRange(start=str(cut))
                if cut <= world.history()[-1]["depot_version"]
                else ReplayRange(end=str(cut))
            )
            if any(row["messages_read"] and row["depot_version"] >= cut for row in world.history()) or part.end:
                assert world.replayed(str(folder / "part"), portion=part).equal
                assert verify(world.depot, str(folder / "part")).differences == ()
            for row in world.rows("open", "closed")[:1]:
                assert world.replayed(portion=ReplayRange(keys=[row["key"]])).equal
            world.ledger = str(folder / "again")
            assert world.replayed().equal
        finally:
            shutil.rmtree(folder)

    @pytest.mark.slow
    @pytest.mark.spark
    def test_on_the_other_engine(self, world: World, spark: Any) -> None:
        """What the embedded engine wrote, Spark plays to the same digest, on the driver and on the executors."""
        live(world, [("publish", 3), ("tick", 30), ("publish", 4), ("flush", 0), ("publish", 5), ("tick", 3)])
        for max_driver_messages in (1_000, 0):
            result = world.replayed(spark=spark, max_driver_messages=max_driver_messages)
            assert result.equal, result.comparison

    def test_progress(self, world: World, embedded: EngineFactory) -> None:
        """After each microbatch it is told how many messages are done, of all of them."""
        world.publish(*log(versions=3, size=10))
        world.runner(embedded).once()
        progress: list[tuple[int, int]] = []
        world.replayed(max_messages=10, progress=lambda *counts: progress.append(counts))
        assert progress == [(10, 30), (20, 30), (30, 30)]


class TestTicks:
    def test_left_out(self, world: World, embedded: EngineFactory) -> None:
        """A tick before messages that were stamped later changes nothing: the microbatches around it become one."""
        world.publish([message("a", NOW, NOW)])
        world.runner(embedded).once()
        world.clock.advance(60 * SECOND)
        world.runner(embedded, idle_timeout="1s").once()
        world.publish([message("b", NOW + 70 * SECOND, NOW + 70 * SECOND)])
        world.runner(embedded).once()
        assert world.kinds() == ["data", "tick", "data"]
        result = world.replayed()
        assert (result.equal, result.replayed.microbatch_count) == (True, 1)

    @pytest.mark.parametrize("max_messages", [1, 1_000])
    def test_played_at_its_place(self, world: World, embedded: EngineFactory, max_messages: int) -> None:
        """A tick that made a message too late is played between the same versions; another source's clock is its
        own.
        """
        world.publish([message("a", NOW, NOW)], [message("a", NOW, NOW, source="s")])
        world.runner(embedded).once()
        world.clock.advance(60 * SECOND)
        world.runner(embedded, idle_timeout="1s").once()
        world.publish([message("b", NOW + SECOND, NOW + SECOND)], [message("c", NOW + 99 * SECOND, NOW + 99 * SECOND)])
        world.runner(embedded).once()
        result = world.replayed(max_messages=max_messages)
        assert result.equal
        assert result.recorded.rejected_by_reason == {"too_old": 1}
        assert result.replayed.microbatch_count == {1: 5, 1_000: 3}[max_messages]

    def test_fresh(self, world: World, embedded: EngineFactory) -> None:
        """Without the recorded ticks what they made too old is accepted, and what they closed stays open; with the same
        rules that is no error.
        """
        world.publish([message("a", NOW, NOW)])
        world.runner(embedded).once()
        world.clock.advance(60 * SECOND)
        world.runner(embedded, idle_timeout="1s").once()
        world.publish([message("b", NOW + SECOND, NOW + SECOND)])
        world.runner(embedded).once()
        result = world.replayed(ticks="fresh")
        assert (result.equal, result.ok, result.replayed.rejected_by_reason) == (False, True, {})
        assert result.comparison is not None
        assert [(move.before, move.message_count) for move in result.comparison.moves] == [("too_old", 1)]
        assert {change.columns["state"] for change in result.comparison.changes} == {("closed", "open")}


class TestRecording:
    @pytest.mark.slow
    @pytest.mark.parametrize("rows", [12_000, 51_004])
    def test_one_digest(self, tmp_path: Path, embedded: EngineFactory, rows: int) -> None:
        """The recorded measurements in four depots, with rows and files of each version in other orders, read in
        microbatches of four sizes with four histories of ticks that come before the next message: one digest.
        """
        measured = pq.read_table(copy_into(tmp_path))
        mapped = ColumnMapping.of(COLUMNS, measured.schema.names).apply(measured, pa.string())
        messages = mapped.read_all().slice(0, rows)
        recorded_digests = set()
        for number, max_messages in enumerate([500, 3_000, 7_000, 10**6]):
            folder = tmp_path / str(number)
            world = World(folder, ManualClock(NOW * 2))
            for start in range(0, rows, 2_000):
                write_shuffled(world.depot, messages.slice(start, 2_000), number)
                if number:
                    world.runner(embedded, max_messages=max_messages).once()
                if number > 1 and start % (number * 2_000) == 0:
                    last = messages["received_at"].slice(0, start + 2_000).cast("int64").to_numpy().max()
                    world.runner(embedded).tick(int(last))
            world.runner(embedded, max_messages=max_messages).once()
            world.runner(embedded).tick(NOW * 2)
            result = world.replayed(max_messages=max_messages // 2)
            assert result.equal
            recorded_digests.add(result.recorded.digest)
        assert len(recorded_digests) == 1


def write_shuffled(depot: str, rows: Any, seed: int) -> None:
    """Append rows as one version: in another order for each seed, in files of another size."""
    order = np.random.default_rng(seed).permutation(rows.num_rows)
    write_deltalake(depot, rows.take(order), mode="append", target_file_size=[10**9, 40_000, 20_000, 80_000][seed])

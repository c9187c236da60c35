"""What comes out of each peer: from one input cut into microbatches in three ways, and after a lost checkpoint.

Each cut is read to its end and, an hour later, once more. Then comes one message of somebody else, so that what is
still open can be told from what is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers import flink, inputs, session_windows, stateful, tumbling_windows, windrow_itself
from windrow.runtime.wall_clock import WallClock

HOUR = 3_600_000_000
FACTS = """
SELECT key, unix_micros(start) AS start, xxhash64(array_sort(transform(messages,
           m -> struct(m.type, unix_micros(m.event_time) AS time, m.payload)))) AS content,
       size(messages) AS messages, size(array_distinct(messages.type)) < size(messages) AS mixed,
       timestampdiff(SECOND, array_min(messages.event_time), array_max(messages.event_time)) AS seconds
FROM {closed} WHERE key <> 'wake-up'"""


class Later(WallClock):
    """The wall clock an hour later."""

    def now(self) -> int:
        """Return microseconds since the epoch, UTC."""
        return super().now() + HOUR


Run = Callable[[SparkSession, Path, Path, int], Any]
"""Runs a peer to the end of its depot; returns Spark's progress, how many rows Flink dropped, or None."""


@dataclass(frozen=True, slots=True)
class Peer:
    """How a peer is run, now and an hour later, and how its closed batches and rejected messages are read."""

    name: str
    program: str
    run: Run
    closed: Callable[[SparkSession, Path], DataFrame]
    recorded: Callable[[SparkSession, Path], int]
    later: Run


@dataclass(frozen=True, slots=True)
class PeerBatches:
    """The closed batches of a peer at one moment: which, and what they hold."""

    batches: frozenset[tuple[str, int, int]]
    rows: int
    messages: int
    mixed: int
    longest_seconds: int


@dataclass(frozen=True, slots=True)
class PeerCounts:
    """What came of one cut: what closed while nothing arrived, and after the wake-up; what is on record.

    `dropped` is what Spark or Flink says it dropped, `again` how many closed batches a run without checkpoint added.
    """

    read: int
    quiet: PeerBatches
    end: PeerBatches
    recorded: int
    dropped: int
    again: int

    @property
    def gone(self) -> int:
        """Messages that are in no batch and in no record."""
        return self.read - self.end.messages - self.recorded

    @property
    def waiting(self) -> int:
        """Messages whose batches stay open until somebody sends."""
        return self.end.messages - self.quiet.messages


def _appended(spark: SparkSession, into: Path) -> DataFrame:
    return spark.read.format("delta").load(str(into / "batches"))


def _in_state(condition: str, spark: SparkSession, into: Path) -> DataFrame:
    return _appended(spark, into).where(f"state {condition}")


def _ledger(spark: SparkSession, into: Path, state: str) -> DataFrame:
    return spark.sql(f"SELECT *, window_start AS start FROM delta.`{into}/ledger` WHERE state = '{state}'")


def _nothing(spark: SparkSession, into: Path) -> int:
    return 0


def _only_windows(name: str, program: str, run: Run) -> Peer:
    return Peer(name, program, run, _appended, _nothing, run)


def _flink(name: str, window: str) -> Peer:
    run = partial(flink.run, window)
    return Peer(name, "flink_windows.py", run, flink.closed, _nothing, run)


def _windrow(name: str, **rules: str) -> Peer:
    return Peer(
        name,
        "windrow_itself.py",
        partial(windrow_itself.run, **rules),
        lambda spark, into: _ledger(spark, into, "closed"),
        lambda spark, into: _ledger(spark, into, "rejected").count(),
        partial(windrow_itself.run, clock=Later(), **rules),
    )


PEERS = (
    _windrow("Windrow on Spark"),
    Peer(
        "`transformWithStateInPandas`",
        "stateful.py",
        stateful.run,
        partial(_in_state, "= 'closed'"),
        lambda spark, into: _in_state("<> 'closed'", spark, into).count(),
        stateful.run,
    ),
    _only_windows("`window`, 10 s", "tumbling_windows.py", tumbling_windows.run),
    _only_windows("`session_window`, gap 10 s", "session_windows.py", session_windows.run),
    _windrow("Windrow on the calendar", window_anchor="aligned", on_repeat="keep"),
)
FLINK_PEERS = tuple(_flink(name, window) for name, window in flink.WINDOWS.items())


def three_cuts(spark: SparkSession, peer: Peer, messages: pa.Table, versions: int, into: Path) -> dict[str, PeerCounts]:
    """Return what comes of an even number of versions: one by one, at once, and one by one with neighbours swapped."""
    swapped = [number ^ 1 for number in range(versions)]
    cuts = {"one by one": (None, 1), "all at once": (None, 1_000_000), "other order": (swapped, 1)}
    counts_by_cut = {}
    for name, (order, at_once) in cuts.items():
        directory = into / name.replace(" ", "-")
        inputs.write(directory / "depot", messages, versions, order)
        counts_by_cut[name] = counts(spark, peer, messages, directory, at_once)
    return counts_by_cut


def counts(spark: SparkSession, peer: Peer, messages: pa.Table, directory: Path, at_once: int) -> PeerCounts:
    """Run a peer on one depot: to its end, an hour later, after the wake-up, and after its checkpoint was lost."""
    depot, out = directory / "depot", directory / "out"
    dropped = _told(peer.run(spark, depot, out, at_once)) + _told(peer.later(spark, depot, out, at_once))
    quiet = _closed(peer.closed(spark, out))
    inputs.write(depot, inputs.wake_up(messages), 1)
    dropped += _told(peer.run(spark, depot, out, at_once))
    end, recorded = _closed(peer.closed(spark, out)), peer.recorded(spark, out)
    again = rerun_without_checkpoint(spark, peer, directory) - end.rows if at_once > 1 else 0
    return PeerCounts(messages.num_rows, quiet, end, recorded, dropped, again)


def rerun_without_checkpoint(spark: SparkSession, peer: Peer, directory: Path) -> int:
    """Lose Spark's checkpoint, run again over the whole depot, and return how many closed batches there are then."""
    shutil.rmtree(directory / "out" / "checkpoint", ignore_errors=True)
    peer.run(spark, directory / "depot", directory / "out", 1_000_000)
    return _closed(peer.closed(spark, directory / "out")).rows


def _closed(closed: DataFrame) -> PeerBatches:
    facts = closed.sparkSession.sql(FACTS, closed=closed).toArrow().to_pydict()
    batches = frozenset(zip(facts["key"], facts["start"], facts["content"], strict=True))
    return PeerBatches(
        batches, len(facts["key"]), sum(facts["messages"]), sum(facts["mixed"]), max(facts["seconds"], default=0)
    )


def _told(progress: Any) -> int:
    """Return how many rows the watermark dropped, as Spark or Flink says."""
    if isinstance(progress, int):
        return progress
    return sum(row["numRowsDroppedByWatermark"] for step in progress or () for row in step["stateOperators"])

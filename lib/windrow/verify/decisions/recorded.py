"""Compare the clocks and rules that the history recorded with those that follow from the log and the rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.messages import times
from windrow.verify.columns import NONE, Ints, apart, dense, flags, kept, numbers
from windrow.verify.decisions.arrived import Held, Streams
from windrow.verify.decisions.clocks import Clocks, ticks
from windrow.verify.decisions.microbatch_history import MicrobatchHistory
from windrow.verify.decisions.source_history import cuts, flushed
from windrow.verify.report import Difference, differing
from windrow.verify.snapshot import Snapshot

REJECTION = [
    "id", "reason", "missed_by_us", "clock_lead_us", "source", "key", "type", "event_time", "received_at",
    "processing_time", "microbatch",
]  # fmt: skip


def check_clocks(snapshot: Snapshot, streams: Streams, clocks: Clocks, held: Held) -> Iterator[Difference]:
    """Check that each microbatch recorded the clocks and floors that follow from the log, the ticks and the rules."""
    history = clocks.history
    expected = [np.concatenate(parts) for parts in zip(*_expected(snapshot, clocks, held), strict=True)]
    microbatch = numbers(history.clocks["microbatch"])
    rows = np.flatnonzero(microbatch > history.gone)
    clock, floor = (numbers(history.clocks[name])[rows] for name in ("clock", "floor"))
    recorded = [microbatch[rows], held.clock_source[rows], clock, floor]
    names = ["microbatch", "source", "clock", "floor"]
    wrong, by_log, found = apart(pa.table(expected, names), pa.table(recorded, names), names[:2])
    rows = pa.table(
        {
            "microbatch": wrong["microbatch"],
            "kind": [history.kinds[one] for one in wrong["microbatch"].to_pylist()],
            "source": streams.sources.take(wrong["source"]),
            "clock by the log": _time(by_log["clock"]),
            "floor by the log": _time(by_log["floor"]),
            "recorded clock": _time(found["clock"]),
            "recorded floor": _time(found["floor"]),
        }
    ).sort_by("microbatch")
    expects = "clock and floor of each source that a microbatch moves, as the log and the rules move them"
    yield from differing("clocks by the log", expects, rows, "clocks recorded otherwise")


def check_ticks(snapshot: Snapshot, clocks: Clocks, held: Held) -> Iterator[Difference]:
    """Check that a tick raises the floor of a source to the greatest timeout it closes, or all floors to one time."""
    history = clocks.history
    number, source, floor = ticks(history, held.clock_source, "tick")
    closed_in, timeout = (numbers(snapshot.batches[name]) for name in ("closed_in", "timeout"))
    last = history.last + 1
    places, row = dense(
        np.concatenate([held.batch_source * last + np.clip(closed_in, 0, last - 1), source * last + number])
    )
    greatest = np.full(places.size, NONE)
    np.maximum.at(greatest, row[: closed_in.size], timeout)
    idle = np.zeros(last, np.bool_)
    idle[number] = True
    idle[number[greatest[row[closed_in.size :]] != floor]] = False
    raising = [at for at, kind in enumerate(history.kinds) if kind == "tick" and at > history.gone and not idle[at]]
    wrong = [at for at in raising if not _to_one_time(clocks, at, floor[number == at])]
    rows = kept(snapshot.history, np.isin(numbers(snapshot.history["microbatch"]), wrong), ["microbatch", "kind"])
    expects = "floors at the greatest timeout that a source closed, or all at one time"
    yield from differing("ticks", expects, rows, "ticks that raised floors otherwise")


def check_rules(snapshot: Snapshot, history: MicrobatchHistory) -> Iterator[Difference]:
    """Check that the rules change only in a microbatch of kind `rules`."""
    changes = [change for change in history.changes() if change > 1 and history.kinds[change] != "rules"]
    wrong = [change for change in changes if history.rules[change] != history.rules[change - 1]]
    names = ["microbatch", "kind", "rules"]
    rows = kept(snapshot.history, np.isin(numbers(snapshot.history["microbatch"]), wrong), names)
    expects = "other rules only from a microbatch of kind rules on"
    yield from differing("rules", expects, rows, "microbatches with other rules")


def check_ahead(snapshot: Snapshot, history: MicrobatchHistory, ahead_from: Ints) -> Iterator[Difference]:
    """Check that all messages ahead of the clock in a microbatch were measured against one bound.

    In a replay this is the bound of the replayed run, so the start of the microbatch does not determine it.
    """
    rejected = kept(snapshot.rejected, flags(pc.equal(snapshot.rejected["reason"], "clock_ahead")))
    bound = numbers(rejected["received_at"]) - numbers(rejected["missed_by_us"])
    microbatch = np.clip(numbers(rejected["microbatch"]), 0, history.last)
    rows = kept(rejected, bound != ahead_from[microbatch], REJECTION)
    expects = "ahead of one time in a microbatch"
    yield from differing("clock_ahead", expects, rows, "rejections")


Moved = tuple[Ints, Ints, Ints, Ints]
"""Microbatch, source, clock, floor."""


def _expected(snapshot: Snapshot, clocks: Clocks, held: Held) -> Iterator[Moved]:
    """Yield the clocks that microbatches must record."""
    yield _by_data(clocks)
    for number in range(clocks.history.gone + 1, clocks.history.last + 1):
        if clocks.history.raised[number] > clocks.history.raised[number - 1]:
            yield _by_rules(clocks, number)
    yield _by_ticks(clocks, held)
    yield _by_flushes(snapshot, clocks, held)


def _by_data(clocks: Clocks) -> Moved:
    """Return the clocks that messages moved, with clock and floor after the last version of the microbatch."""
    rows = np.flatnonzero(clocks.is_data)
    last = clocks.history.last + 1
    place = np.unique(clocks.source[rows] * last + clocks.microbatch[rows])
    source, microbatch = place // last, place % last
    floor = clocks.floor_after(source, microbatch)
    return microbatch, source, floor, floor


def _by_rules(clocks: Clocks, number: int) -> Moved:
    """Return the clocks that a larger `max_delay` moved: it raises the floor of every known source."""
    known = np.unique(clocks.source)
    before = np.full(known.size, number - 1)
    source = known[clocks.floor_after(known, before) != NONE]
    microbatch = np.full(source.size, number)
    return microbatch, source, clocks.clock_after(source, microbatch), clocks.floor_after(source, microbatch)


def _by_ticks(clocks: Clocks, held: Held) -> Moved:
    """Return the clocks that ticks moved, as they recorded it: the source must be known and its floor lower before."""
    number, source, floor = ticks(clocks.history, held.clock_source, "tick")
    clock = clocks.clock_after(source, number - 1)
    right = (clock != NONE) & (floor > clocks.floor_after(source, number - 1))
    return number[right], source[right], clock[right], floor[right]


def _by_flushes(snapshot: Snapshot, clocks: Clocks, held: Held) -> Moved:
    """Return the clocks that flushes moved: the floor rises to the flush's time, or to cut + `max_delay` if later."""
    history, last = clocks.history, clocks.history.last + 1
    at, flush = flushed(clocks, held), cuts(snapshot, held)
    delay = history.each("max_delay")
    place, row = dense(np.concatenate([part[1] * last + np.clip(part[0], 0, last - 1) for part in (at, flush)]))
    source, microbatch = place // last, place % last
    before = clocks.floor_after(source, np.maximum(microbatch - 1, 0))
    floor = before.copy()
    ends = np.concatenate([at[2], flush[2] + delay[np.clip(flush[0], 0, last - 1)]])
    np.maximum.at(floor, row, ends)
    right = (floor > before) & (before != NONE) & (microbatch > history.gone)
    right &= np.array(history.kinds)[microbatch] == "flush"
    source, microbatch = source[right], microbatch[right]
    return microbatch, source, clocks.clock_after(source, microbatch), floor[right]


def _to_one_time(clocks: Clocks, number: int, floor: Ints) -> bool:
    """Tell whether a tick raised every lower floor to the same time."""
    if not floor.size or floor.min() != floor.max():
        return False
    known = np.unique(clocks.source)
    after = clocks.floor_after(known, np.full(known.size, number))
    return bool(np.all((after == NONE) | (after >= floor[0])))


def _time(column: pa.ChunkedArray) -> pa.Array:
    values = numbers(column)
    return times(values, values != NONE)

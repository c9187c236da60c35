"""The history of each source as its streams see it: its floor, changes of the rules, and flushes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import NONE, Ints, flags, numbers
from windrow.verify.decisions.arrived import NOBODY, Held
from windrow.verify.decisions.clocks import Clocks
from windrow.verify.decisions.reference_model import Change, SourceHistory
from windrow.verify.snapshot import Snapshot


class SourceHistories:
    """The history of each source by its number, made on first use."""

    def __init__(self, snapshot: Snapshot, clocks: Clocks, held: Held) -> None:
        """Keep what is the same for all sources."""
        self._history, self._clocks = clocks.history, clocks
        self._raised = clocks.history.raised.tolist()
        self._changes = np.array(
            [change for change in clocks.history.changes() if change > clocks.history.gone], np.int64
        )
        self._cuts = dict(zip(*_listed(*cuts(snapshot, held)), strict=True))
        self._flushed = dict(zip(*_listed(*flushed(clocks, held)), strict=True))
        self.of = cache(self._of)

    def _of(self, source: int) -> SourceHistory:
        reached_in, heights = self._clocks.of(source)
        return SourceHistory(
            rules=self._history.rules,
            raised=self._raised,
            heights=heights.tolist(),
            reached_in=reached_in.tolist(),
            changes=self._lived(source, reached_in, np.append(heights, NONE)),
            floor=int(heights[-1]) + self._raised[-1] if heights.size else int(NONE),
        )

    def _lived(self, source: int, reached_in: Ints, heights: Ints) -> list[Change]:
        """Return the changes as a source saw them; its height is NONE before the first."""
        before, after = (
            heights[np.searchsorted(reached_in, at, side="right") - 1] + self._history.raised[at]
            for at in (self._changes - 1, self._changes)
        )
        changes = []
        for at, microbatch in enumerate(self._changes.tolist()):
            place, flush = (microbatch, source), self._history.kinds[microbatch] == "flush"
            floor = int(before[at])
            now = max(floor, self._flushed.get(place, NONE)) if flush else int(after[at])
            changes.append(Change(microbatch, floor, now, flush, self._cuts.get(place, NOBODY)))
        return changes


def cuts(snapshot: Snapshot, held: Held) -> tuple[Ints, Ints, Ints]:
    """Return microbatch, source and the cut of each flush: just after the last message of the source that it closed.

    The cut depends on all streams of the source, so it is read from the ledger. It is right if every stream is.
    """
    rows = np.flatnonzero(flags(pc.equal(snapshot.batches["close_reason"], "flush")))
    closed_in = numbers(snapshot.batches["closed_in"])[rows]
    last = numbers(snapshot.batches["last_event_time"])[rows]
    grouped = (
        pa.table({"microbatch": closed_in, "source": held.batch_source[rows], "last": last})
        .group_by(["microbatch", "source"], use_threads=False)
        .aggregate([("last", "max")])
    )
    return numbers(grouped["microbatch"]), numbers(grouped["source"]), numbers(grouped["last_max"]) + 1


def flushed(clocks: Clocks, held: Held) -> tuple[Ints, Ints, Ints]:
    """Return microbatch, source and time of each flush that recorded its time."""
    at = numbers(clocks.history.clocks["flushed_at"])
    rows = np.flatnonzero(at != NONE)
    return numbers(clocks.history.clocks["microbatch"])[rows], held.clock_source[rows], at[rows]


def _listed(microbatch: Ints, source: Ints, time: Ints) -> tuple[list[tuple[int, int]], list[int]]:
    return list(zip(microbatch.tolist(), source.tolist(), strict=True)), time.tolist()

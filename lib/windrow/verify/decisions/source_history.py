"""What happened to each source, as the windows of its streams see it: its floor, changes of the rules, flushes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import NONE, Ints, flags, numbers
from windrow.verify.decisions.arrived import NOBODY, Held
from windrow.verify.decisions.clocks import Clocks
from windrow.verify.decisions.reference_model import MicrobatchInput, Past
from windrow.verify.snapshot import Snapshot


class Pasts:
    """The past of each source, by its number, made when it is asked for."""

    def __init__(self, snapshot: Snapshot, clocks: Clocks, held: Held) -> None:
        """Keep what is the same for all sources."""
        self._course, self._clocks = clocks.course, clocks
        self._raised = clocks.course.raised.tolist()
        self._turns = np.array([turn for turn in clocks.course.turns() if turn > clocks.course.gone], np.int64)
        self._cuts = dict(zip(*_listed(*cuts(snapshot, held)), strict=True))
        self._flushed = dict(zip(*_listed(*flushed(clocks, held)), strict=True))
        self.of = cache(self._of)

    def _of(self, source: int) -> Past:
        reached_in, heights = self._clocks.of(source)
        return Past(
            rules=self._course.rules,
            raised=self._raised,
            heights=heights.tolist(),
            reached_in=reached_in.tolist(),
            turns=self._lived(source, reached_in, np.append(heights, NONE)),
            floor=int(heights[-1]) + self._raised[-1] if heights.size else int(NONE),
        )

    def _lived(self, source: int, reached_in: Ints, heights: Ints) -> list[MicrobatchInput]:
        """Return the turns as a source lived through them; -1 stands for a height that it had not reached yet."""
        before, after = (
            heights[np.searchsorted(reached_in, at, side="right") - 1] + self._course.raised[at]
            for at in (self._turns - 1, self._turns)
        )
        turns = []
        for at, microbatch in enumerate(self._turns.tolist()):
            place, flush = (microbatch, source), self._course.kinds[microbatch] == "flush"
            floor = int(before[at])
            now = max(floor, self._flushed.get(place, NONE)) if flush else int(after[at])
            turns.append(MicrobatchInput(microbatch, floor, now, flush, self._cuts.get(place, NOBODY)))
        return turns


def cuts(snapshot: Snapshot, held: Held) -> tuple[Ints, Ints, Ints]:
    """Return microbatch, source and where windows were cut: behind the last message that a flush of the source closed.

    This is read from the ledger, where the batches of other streams of the source stand: it is right when each stream
    is compared.
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
    """Return microbatch, source and at which time flushes closed, where it was recorded."""
    at = numbers(clocks.course.clocks["flushed_at"])
    rows = np.flatnonzero(at != NONE)
    return numbers(clocks.course.clocks["microbatch"])[rows], held.clock_source[rows], at[rows]


def _listed(microbatch: Ints, source: Ints, time: Ints) -> tuple[list[tuple[int, int]], list[int]]:
    return list(zip(microbatch.tolist(), source.tolist(), strict=True)), time.tolist()

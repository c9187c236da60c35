"""Recorded ticks that have not been played yet, and which of them matter to the next messages.

A tick raised the floor of a source after everything up to a depot version was read. It matters if one of the source's
next messages has an earlier stamp: the processing time of that message is the floor. If all of them are stamped at the
floor or later, every processing time is the same without the tick, and the batches it closed close at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.floors import Floors, Ints
from windrow.model.messages import microseconds

BEYOND = int(np.iinfo(np.int64).max)
TICKS = pa.schema([("version", pa.int64()), ("source", pa.string()), ("floor", pa.int64())])


def ticks_of(raised: Sequence[tuple[int, str, int]]) -> pa.Table:
    """Return raised floors in the order of recording: depot version read by then, source, microseconds."""
    columns = zip(*raised, strict=True) if raised else ((), (), ())
    arrays = [pa.array(values, field.type) for values, field in zip(columns, TICKS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=TICKS)


def effective_ticks(ticks: pa.Table, floors: Floors) -> pa.Table:
    """Return the ticks that raise one of the floors."""
    return ticks.filter(pa.array(ticks["floor"].to_numpy() > floors.of(ticks["source"].combine_chunks())))


def split(ticks: pa.Table, last_version: int | None) -> tuple[Floors, pa.Table]:
    """Return the floors of the ticks up to a depot version (None: all), and the other ticks."""
    played = pc.less_equal(ticks["version"], BEYOND if last_version is None else last_version)
    before = ticks.filter(played)
    floors = Floors.empty().raised(before["source"].combine_chunks(), before["floor"].to_numpy())
    return floors, ticks.filter(pc.invert(played))


def first_effective(ticks: pa.Table, summary: pa.Table) -> int:
    """Return the depot version of the first tick that matters to the messages of a summary, or `BEYOND`."""
    moving = summary.filter(pc.is_valid(summary["stamp"]))
    sources = moving["source"].combine_chunks().unique()
    code = _code(moving["source"].combine_chunks(), sources)
    version, earliest = moving["version"].to_numpy(), microseconds(moving["earliest"])
    order = np.lexsort((version, code))
    ticks = ticks.filter(pc.is_in(ticks["source"], sources))
    if not ticks.num_rows:
        return BEYOND
    source, played = _code(ticks["source"].combine_chunks(), sources), ticks["version"].to_numpy()
    span = int(max(version.max(), played.max())) + 2
    at = np.searchsorted(code[order] * span + version[order], source * span + played, side="right")
    following = order[np.minimum(at, order.size - 1)]
    follows = (at < order.size) & (code[following] == source)
    matters = follows & (earliest[following] < ticks["floor"].to_numpy())
    return int(played[matters].min(initial=BEYOND))


def _code(source: pa.Array, sources: pa.Array) -> Ints:
    return pc.index_in(source, sources).cast(pa.int64()).to_numpy(zero_copy_only=False)

"""The batches of whole streams, told again from their messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import Bools, Ints, numbers, pairwise
from windrow.verify.decisions.arrived import Arrived, Streams
from windrow.verify.decisions.reference_model import Messages, Stream, Told
from windrow.verify.decisions.source_history import Pasts
from windrow.verify.decisions.verdicts import ACCEPTED, Fates

CHUNK = 200_000


@dataclass(frozen=True, slots=True)
class Chosen:
    """The streams whose windows are told again, by stream; how many they are, and how many are left with messages."""

    of_stream: Bools
    streams: int
    left: int
    left_messages: int


@dataclass(frozen=True, slots=True)
class Retold:
    """Accepted messages of the chosen streams by their row, in the order of processing, and what came of them."""

    rows: Ints
    told: Told


def choose(streams: Streams, arrived: Arrived, fates: Fates, most: int | None) -> Chosen:
    """Choose whole streams with `most` accepted messages together, those with the fewest first, then by name.

    None: all whole streams.
    """
    count = np.bincount(arrived.stream[fates.fate == ACCEPTED], minlength=streams.whole.size)
    there = np.flatnonzero(streams.whole & (count > 0))
    by_size = there[np.argsort(count[there], kind="stable")]
    fits = by_size.size if most is None else int(np.searchsorted(np.cumsum(count[by_size]), most, side="right"))
    of_stream = streams.whole & (count == 0)
    of_stream[by_size[:fits]] = True
    left = by_size[fits:]
    return Chosen(of_stream, fits, left.size, int(count[left].sum()))


def retell(
    streams: Streams,
    arrived: Arrived,
    fates: Fates,
    pasts: Pasts,
    chosen: Chosen,
    progress: Callable[[int, int], None],
) -> Retold:
    """Tell the windows of the chosen streams again. `progress` is told how many messages are done, of how many."""
    rows = _ordered(arrived, fates, chosen)
    stream = arrived.stream[rows]
    begins = np.flatnonzero(pairwise(stream, np.not_equal, first=True))
    ends = np.append(begins[1:], rows.size)
    told, first = Told([0] * rows.size), 0
    while first < begins.size:
        upto = max(int(np.searchsorted(ends, begins[first] + CHUNK, side="right")), first + 1)
        low, high = int(begins[first]), int(ends[upto - 1])
        messages = _plain(arrived, fates, rows[low:high])
        part = replace(told, batch_of=[0] * (high - low))
        for at in range(first, upto):
            number = int(stream[begins[at]])
            one = Stream(number, messages, pasts.of(int(streams.source[number])), part)
            one.tell(range(int(begins[at]) - low, int(ends[at]) - low))
        told.batch_of[low:high] = part.batch_of
        if high - low < rows.size:
            progress(high, rows.size)
        first = upto
    return Retold(rows, told)


def _ordered(arrived: Arrived, fates: Fates, chosen: Chosen) -> Ints:
    """Return the accepted messages of the chosen streams in the order in which the rules take them."""
    rows = np.flatnonzero((fates.fate == ACCEPTED) & chosen.of_stream[arrived.stream])
    by = (
        arrived.kind, arrived.event_time, arrived.sequence, arrived.has_sequence,
        fates.processing_time, arrived.version, arrived.stream,
    )  # fmt: skip
    return rows[np.lexsort([values[rows] for values in by])]


def _plain(arrived: Arrived, fates: Fates, rows: Ints) -> Messages:
    content = arrived.messages.select(["type", "payload"]).take(pa.array(rows))
    byte_count = [numbers(pc.fill_null(pc.binary_length(column), 0)) for column in content.columns]
    return Messages(
        event_time=arrived.event_time[rows].tolist(),
        processing_time=fates.processing_time[rows].tolist(),
        kind=arrived.kind[rows].tolist(),
        byte_count=(byte_count[0] + byte_count[1]).tolist(),
        microbatch=arrived.microbatch[rows].tolist(),
    )

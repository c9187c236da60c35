"""Derive the batches of whole streams from their messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from windrow.verify.columns import Bools, Ints, pairwise
from windrow.verify.decisions.arrived import Arrived, Streams
from windrow.verify.decisions.reference_model import DerivedBatches, Messages, Stream
from windrow.verify.decisions.source_history import SourceHistories
from windrow.verify.decisions.verdicts import ACCEPTED, Verdicts

CHUNK = 200_000


@dataclass(frozen=True, slots=True)
class ChosenStreams:
    """A flag for each stream whose windows are derived, their number, and how many other streams have messages."""

    of_stream: Bools
    streams: int
    left: int
    left_messages: int


@dataclass(frozen=True, slots=True)
class Derived:
    """The accepted messages of the chosen streams, by row and in processing order, and their batches."""

    rows: Ints
    batches: DerivedBatches


def choose(streams: Streams, arrived: Arrived, verdicts: Verdicts, most: int | None) -> ChosenStreams:
    """Choose whole streams with `most` accepted messages together, the smallest first, then by name; None: all."""
    count = np.bincount(arrived.stream[verdicts.verdict == ACCEPTED], minlength=streams.whole.size)
    there = np.flatnonzero(streams.whole & (count > 0))
    by_size = there[np.argsort(count[there], kind="stable")]
    fits = by_size.size if most is None else int(np.searchsorted(np.cumsum(count[by_size]), most, side="right"))
    of_stream = streams.whole & (count == 0)
    of_stream[by_size[:fits]] = True
    left = by_size[fits:]
    return ChosenStreams(of_stream, fits, left.size, int(count[left].sum()))


def derive(
    streams: Streams,
    arrived: Arrived,
    verdicts: Verdicts,
    source_histories: SourceHistories,
    chosen: ChosenStreams,
    progress: Callable[[int, int], None],
) -> Derived:
    """Derive the batches of the chosen streams; `progress` is called with the messages done and all messages."""
    rows = _ordered(arrived, verdicts, chosen)
    stream = arrived.stream[rows]
    begins = np.flatnonzero(pairwise(stream, np.not_equal, first=True))
    ends = np.append(begins[1:], rows.size)
    batches, first = DerivedBatches([0] * rows.size), 0
    while first < begins.size:
        upto = max(int(np.searchsorted(ends, begins[first] + CHUNK, side="right")), first + 1)
        low, high = int(begins[first]), int(ends[upto - 1])
        messages = _plain(arrived, verdicts, rows[low:high])
        of_chunk = replace(batches, batch_of=[0] * (high - low))
        for at in range(first, upto):
            number = int(stream[begins[at]])
            one = Stream(number, messages, source_histories.of(int(streams.source[number])), of_chunk)
            one.derive(range(int(begins[at]) - low, int(ends[at]) - low))
        batches.batch_of[low:high] = of_chunk.batch_of
        if high - low < rows.size:
            progress(high, rows.size)
        first = upto
    return Derived(rows, batches)


def _ordered(arrived: Arrived, verdicts: Verdicts, chosen: ChosenStreams) -> Ints:
    """Return the accepted messages of the chosen streams in the order in which the rules process them."""
    rows = np.flatnonzero((verdicts.verdict == ACCEPTED) & chosen.of_stream[arrived.stream])
    by = (
        arrived.kind, arrived.event_time, arrived.sequence, arrived.has_sequence,
        verdicts.processing_time, arrived.version, arrived.stream,
    )  # fmt: skip
    return rows[np.lexsort([values[rows] for values in by])]


def _plain(arrived: Arrived, verdicts: Verdicts, rows: Ints) -> Messages:
    return Messages(
        event_time=arrived.event_time[rows].tolist(),
        processing_time=verdicts.processing_time[rows].tolist(),
        kind=arrived.kind[rows].tolist(),
        byte_count=arrived.messages["content_bytes"].take(pa.array(rows)).to_pylist(),
        microbatch=arrived.microbatch[rows].tolist(),
    )

"""Decide for new messages and open batches: the windows of all streams, and the fate of each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.batching import kernel
from windrow.batching.columns import SHARE, Ints, Rows, by_stream, columns
from windrow.batching.rules import Rules
from windrow.batching.shard import Refused, Share, decided, joined
from windrow.columnar.arrow import at_once, texts
from windrow.model.floors import Floors
from windrow.model.rejection import Refusals

REASONS = texts(["accepted", "too_old", "too_futuristic", "duplicate"])

Now = Callable[[pa.Array], Ints]


@dataclass(frozen=True, slots=True)
class Decision:
    """The fate of the messages, by shares of the streams; `listing` turns it into rows.

    `refused` are the messages in no batch. `cuts` are the floors to which a flush raises its sources.
    """

    rows: Rows
    shares: Sequence[Share]
    rules: Rules
    refused: Refused
    cuts: Floors


def decide(
    messages: pa.Table,
    processing_time: Ints,
    version: Ints,
    batches: pa.Table,
    rules: Rules,
    now: Now,
    flush: bool,
    last: Floors | None = None,
) -> Decision:
    """Apply the rules of batching to `messages` (conforming and valid) and the open `batches`.

    `processing_time` and `version` are per message. `now` returns the clocks of sources after all messages, at which
    overdue batches close (microseconds). With `flush`, batches that are open after that are cut and closed at `now`. A
    caller with only some streams of a source passes the `last` event time in all its batches that are still open.
    """
    rows = by_stream(messages, processing_time, version, batches)
    sweep = now(rows.source)

    def share(first: int, last: int) -> Share:
        return decided(columns(rows, first, last), rules, sweep[first:last])

    shares = at_once([partial(share, *streams) for streams in rows.shares(SHARE)], rows.count)
    cuts = _flush(rows.source, shares, rules, sweep, last) if flush else Floors.empty()
    return Decision(rows, shares, rules, joined(share.refused for share in shares), cuts)


def refused(decision: Decision, row: Ints, processing_time: Ints) -> Refusals:
    """Return the messages that the rules refused; `row` is the row of each message in its table."""
    message, fate, off_by = decision.refused
    return Refusals(
        row=row[message],
        reason=REASONS.take(pa.array(fate)),
        detail=pa.nulls(message.size),
        off_by=off_by,
        processing_time=processing_time[message],
        processed=np.ones(message.size, np.bool_),
    )


def _flush(source_of_stream: pa.Array, shares: Sequence[Share], rules: Rules, now: Ints, last: Floors | None) -> Floors:
    """Cut and close the open windows; return the floor that each flushed source needs."""
    encoded = source_of_stream.dictionary_encode()
    source, sources = encoded.indices.to_numpy(), encoded.dictionary
    cut = np.full(len(sources), kernel.NEVER)
    for share in shares:
        windows, still_open = share.windows, share.windows.open
        np.maximum.at(cut, source[windows.stream[still_open]], share.time_at[windows.last[still_open]] + 1)
    if last is not None:
        cut = np.where(cut == kernel.NEVER, cut, last.of(sources) + 1)
    for share in shares:
        windows, flushed = share.windows, np.flatnonzero(share.windows.open)
        stream = windows.stream[flushed]
        windows.end[flushed] = np.minimum(windows.end[flushed], cut[source[stream]])
        windows.closed_at[flushed] = now[stream]
        windows.changed[flushed] = True
        windows.flushed[flushed] = True
    had_open = np.flatnonzero(cut != kernel.NEVER)
    return Floors(sources.take(pa.array(had_open)), cut[had_open] + rules.max_delay)

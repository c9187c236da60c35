"""Running totals of the open batches by source, which a ledger keeps in the rows of its sources.

They tell a microbatch how much is open and when the next window ends, without reading an open batch. So it can choose
where to process, and an idle tick costs nothing.

`next_window_end` is no later than the end of any open window of the source. It is exact after a microbatch that read
all open batches of the source. After one that read only some of them it may be too early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import (
    TIME,
    boolean_array,
    combine_chunks,
    concat_dictionaries,
    filter_rows,
    from_numpy,
    index_in,
    to_numpy,
)
from windrow.columnar.compiled import Flags
from windrow.errors import ensure
from windrow.model.clock import UNKNOWN
from windrow.model.floors import Floors, Ints
from windrow.model.messages import microseconds, times

MESSAGES = "messages"
FAR = np.iinfo(np.int64).max
SCHEMA = pa.schema(
    [
        ("source", pa.string()), ("open_batches", pa.int64()), ("open_messages", pa.int64()),
        ("open_bytes", pa.int64()), ("next_window_end", TIME),
    ]
)  # fmt: skip
COUNTS = ("open_batches", "open_messages", "open_bytes")


def total_batches(batches: pa.Table) -> pa.Table:
    """Return the totals (`SCHEMA`) of some batches, which are rows with the ledger's columns."""
    sums = [("message_count", "count"), ("message_count", "sum"), ("bytes", "sum"), ("window_end", "min")]
    columns = batches.select(["source", "message_count", "bytes", "window_end"])
    return columns.group_by("source").aggregate(sums).rename_columns(SCHEMA.names).cast(SCHEMA)


@dataclass(frozen=True)
class BatchFilter:
    """Selects open batches that messages can change, and those whose window has ended.

    `arrived` returns the `source, key, event_time` of the messages, None if unknown; it need not be called. A window
    has ended if its end is not after the time in `ends_before` for its source.

    Windows of a stream never overlap. So a message changes at most the batch whose window holds it, and the decision
    also needs the bounds of the windows beside it. Nothing else of a stream matters, however much of it is open.
    """

    arrived: Callable[[], pa.Table | None]
    ends_before: Floors

    @cached_property
    def streams(self) -> pa.Table | None:
        """Return the streams of the messages (`source, key`), None if unknown."""
        arrived = self.arrived()
        return None if arrived is None else arrived.group_by(["source", "key"]).aggregate([])

    @cached_property
    def _names(self) -> dict[str, pa.Array] | None:
        streams = self.streams
        return (
            None
            if streams is None
            else {name: concat_dictionaries(streams[name]).dictionary for name in ("source", "key")}
        )

    def needed(self, batches: pa.Table, counting: pa.Array | None = None) -> tuple[pa.Table, Flags]:
        """Return the batches that the decision needs, and which of them can change and so need their messages.

        The others have a window next to a message. Only the `counting` rows of `batches` are open (None: all). There
        may be very many rows, so they are copied only when few are left.
        """
        near = self._near(batches) if counting is None else pc.and_(self._near(batches), counting)
        windows = filter_rows(batches.select(["source", "key", "window_start", "window_end"]), near)
        around, beside = self._around(windows)
        changing = self._find_ended(windows) | around
        needed = changing | beside
        chosen = to_numpy(near) == 1
        chosen[chosen] = needed
        return filter_rows(batches, boolean_array(chosen)), changing[needed]

    def _near(self, batches: pa.Table) -> pa.Array:
        """Tell which batches have ended, or have the source of some message and the key of some; all if unknown."""
        if self._names is None:
            return boolean_array(np.ones(batches.num_rows))
        source, key = (pc.is_in(batches[name], known) for name, known in self._names.items())
        return pc.or_(pc.and_(source, key), boolean_array(self._find_ended(batches)))

    def _find_ended(self, batches: pa.Table) -> Flags:
        ended: Flags = microseconds(batches["window_end"]) <= self.ends_before.of(combine_chunks(batches["source"]))
        return ended

    def _around(self, batches: pa.Table) -> tuple[Flags, Flags]:
        """Tell which windows hold the event time of a message, and which are the last before or the first after one."""
        arrived = self.arrived()
        around, beside = np.zeros((2, batches.num_rows), np.bool_)
        if arrived is None:
            return ~around, ~beside
        stream, of = _streams(batches, arrived)
        start, end = microseconds(batches["window_start"]), microseconds(batches["window_end"])
        at = microseconds(arrived["event_time"])
        is_window = np.arange(stream.size + of.size) < stream.size
        # by stream and time; a window comes before a message at its start
        order = np.lexsort((~is_window, np.append(start, at), np.append(stream, of)))
        before = np.cumsum(is_window[order])  # windows up to each place, in all streams
        windows, messages = order[is_window[order]], ~is_window[order]
        message = order[messages] - stream.size
        for place in (before[messages] - 1, before[messages]):
            among = (place >= 0) & (place < windows.size)
            window, of_message = windows[place[among]], message[among]
            same = stream[window] == of[of_message]
            window, time = window[same], at[of_message[same]]
            # guard: windows-beside-a-message
            beside[window] = True
            around[window[(start[window] <= time) & (time < end[window])]] = True
        return around, beside


def _streams(batches: pa.Table, arrived: pa.Table) -> tuple[Ints, Ints]:
    source, key = (concat_dictionaries(batches[name], arrived[name]) for name in ("source", "key"))
    stream = to_numpy(source.indices, null=-1) * (len(key.dictionary) + 1) + to_numpy(key.indices, null=-1)
    return stream[: batches.num_rows], stream[batches.num_rows :]


def with_messages(batches: pa.Table, messages: pa.ChunkedArray) -> pa.Table:
    """Return batches with these messages in place of their own."""
    at = batches.schema.get_field_index(MESSAGES)
    return batches.set_column(at, batches.schema.field(at), messages)


def no_messages() -> pa.Table:
    """Return the empty table of arrived messages, for a microbatch without any."""
    return pa.schema([("source", pa.string()), ("key", pa.string()), ("event_time", TIME)]).empty_table()


@dataclass(frozen=True, slots=True)
class OpenBatchTotals:
    """Totals of the open batches by source: `counts` has a row for each of `COUNTS`, and a column for each source.

    `next_window_end` (microseconds) is UNKNOWN for a source without open batches.
    """

    source: pa.Array
    counts: Ints
    next_window_end: Ints

    @classmethod
    def none(cls) -> OpenBatchTotals:
        """Return the totals of no source."""
        return cls.of(SCHEMA.empty_table())

    @classmethod
    def of(cls, rows: pa.Table) -> OpenBatchTotals:
        """Return the totals in rows of `SCHEMA`; NULL counts as 0."""
        counts = np.stack([to_numpy(rows[name], null=0) for name in COUNTS])
        return cls(combine_chunks(rows["source"]), counts, to_numpy(rows["next_window_end"], null=UNKNOWN))

    @property
    def total(self) -> tuple[int, int, int]:
        """Return how many batches, messages and bytes are open in total."""
        batches, messages, size = self.counts.sum(axis=1).tolist()
        return batches, messages, size

    def passed_window_ends(self, passed: Floors) -> Floors:
        """Return the clocks in `passed` that may have reached the end of an open window."""
        end = self.for_sources(passed.source).next_window_end
        rows = np.flatnonzero((end != UNKNOWN) & (end <= passed.floor))
        return Floors(passed.source.take(from_numpy(rows)), passed.floor[rows])

    def for_sources(self, sources: pa.Array) -> OpenBatchTotals:
        """Return the totals of the given sources, in their order."""
        if sources.equals(self.source):
            return self
        at = index_in(sources, self.source)
        known = at >= 0
        end = np.append(self.next_window_end, UNKNOWN)[at]
        return OpenBatchTotals(
            sources, np.where(known, np.pad(self.counts, ((0, 0), (0, 1)))[:, at], 0), np.where(known, end, UNKNOWN)
        )

    def after(self, read: OpenBatchTotals, left: OpenBatchTotals, passed: Floors) -> OpenBatchTotals:
        """Return the totals that change with a microbatch, which `read` some open batches and `left` some open.

        The batches that it did not read end after `passed`. Nothing else changes.
        """
        sources = pa.concat_arrays([read.source, left.source, passed.source]).unique()
        before, new = self.for_sources(sources), left.for_sources(sources)
        unread = before.counts - read.for_sources(sources).counts
        # guard: totals-bound-unread
        ensure(not (unread[0] < 0).any(), "a microbatch reads no more open batches than there are")
        counts = unread + new.counts
        bound = np.maximum(before.next_window_end, np.minimum(passed.of(sources), FAR - 1) + 1)
        end = np.where(new.counts[0] > 0, new.next_window_end, FAR)
        # guard: unread-window-end
        end = np.minimum(end, np.where(unread[0] > 0, bound, FAR))
        end[counts[0] == 0] = UNKNOWN
        changed = np.flatnonzero((counts != before.counts).any(axis=0) | (end != before.next_window_end))
        return OpenBatchTotals(sources.take(from_numpy(changed)), counts[:, changed], end[changed])

    def updated(self, changed: OpenBatchTotals, sources: pa.Array) -> OpenBatchTotals:
        """Return the totals of the given sources, with the changed ones replaced."""
        before, new = self.for_sources(sources), changed.for_sources(sources)
        is_new = index_in(sources, changed.source) >= 0
        end = np.where(is_new, new.next_window_end, before.next_window_end)
        return OpenBatchTotals(sources, np.where(is_new, new.counts, before.counts), end)

    def columns(self) -> dict[str, object]:
        """Return the totals as columns of the ledger."""
        counts = {name: from_numpy(values) for name, values in zip(COUNTS, self.counts, strict=True)}
        return counts | {"next_window_end": times(self.next_window_end, self.next_window_end != UNKNOWN)}

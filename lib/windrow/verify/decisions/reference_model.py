"""A reference model of the rules: derive the windows of a stream, message by message.

`verify` compares the ledger with this model. It is written to be read: it follows docs/batching.md sentence by
sentence, and shares no code with `windrow.batching`. Times are microseconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter

import pyarrow as pa

from windrow.reading.tables import recorded_rules

START = attrgetter("start")
# The batches that the rules make; an open one has neither `closed_at` nor `close_reason` nor `closed_microbatch`.
DERIVED = pa.schema(
    [
        ("stream", pa.int64()), ("start", pa.int64()), ("part", pa.int64()), ("end", pa.int64()),
        ("timeout_at", pa.int64()), ("open_reason", pa.string()), ("opened_microbatch", pa.int64()),
        ("oversize", pa.bool_()),
        ("closed_at", pa.int64()), ("close_reason", pa.string()), ("closed_microbatch", pa.int64()),
    ]
)  # fmt: skip
Batch = tuple[int | str | bool | None, ...]
Closed = tuple[int, str, int] | tuple[None, None, None]
OPEN: Closed = (None, None, None)


@dataclass(frozen=True, slots=True)
class RecordedRules:
    """The rules that a microbatch recorded; durations in microseconds."""

    window: int
    max_delay: int
    max_lead: int
    max_batch_bytes: int
    at_arrival: bool
    keeps: bool
    at_midpoint: bool
    on_calendar: bool = False
    window_offset: int = 0

    @classmethod
    def from_json(cls, text: str) -> RecordedRules:
        """Parse rules from JSON. Raises IncompatibleTableError for anything else."""
        result = recorded_rules(text)
        return cls(
            window=result["window"],
            max_delay=result["max_delay"],
            max_lead=result["max_lead"],
            max_batch_bytes=int(result.get("max_batch_bytes") or 0),
            at_arrival=result.get("window_anchor") == "arrival",
            keeps=result.get("on_repeat") == "keep",
            at_midpoint=result.get("split_at") == "midpoint",
            on_calendar=result.get("window_anchor") == "aligned",
            window_offset=int(result.get("window_offset") or 0),
        )


@dataclass(frozen=True, slots=True)
class Messages:
    """The accepted messages of a stream in processing order, as plain lists with one element per message."""

    event_time: list[int]
    processing_time: list[int]
    kind: list[int]
    byte_count: list[int]
    microbatch: list[int]


@dataclass(frozen=True, slots=True)
class RulesChange:
    """A microbatch that changed the rules or flushed, as one source sees it: the floor `before` and the time `now`.

    A flush ends windows at `cut` or earlier.
    """

    microbatch: int
    before: int
    now: int
    flush: bool
    cut: int


@dataclass(frozen=True, slots=True)
class SourceHistory:
    """The history of a source: the heights of its floor, the microbatches that reached them, and the changes.

    `rules` and `raised` are indexed by microbatch; a floor is one of `floor_values` + raised, `floor` the last one.
    From the microbatches `cut_in` on, windows may lie off the calendar up to the `cuts`. Windows that were open after
    the microbatch `verified` are taken as correct.
    """

    rules: Sequence[RecordedRules]
    raised: Sequence[int]
    floor_values: list[int]
    reached_in: list[int]
    changes: list[RulesChange]
    floor: int
    cut_in: Sequence[int] = ()
    cuts: Sequence[int] = ()
    verified: int = 0


@dataclass(slots=True)
class ReferenceWindow:
    """An active window; `rows_by_kind` has the rows of each type, perhaps several if the rules keep repeats."""

    start: int
    end: int
    open_reason: str
    opened_microbatch: int
    changed_in: int
    byte_count: int = 0
    rows_by_kind: dict[int, list[int]] = field(default_factory=dict)

    @property
    def rows(self) -> list[int]:
        """Return the rows of all its messages."""
        return list(chain.from_iterable(self.rows_by_kind.values()))


class ReferenceStream:
    """One stream: its active windows, ordered by start, and the rules in force."""

    def __init__(
        self,
        number: int,
        messages: Messages,
        source_history: SourceHistory,
        batches: list[Batch],
        windows: Sequence[ReferenceWindow] = (),
    ) -> None:
        """Begin with `windows`, the open window of each of the first messages; append derived batches to `batches`."""
        self._number, self._messages, self._source_history, self._batches = number, messages, source_history, batches
        self._batch_of = [0] * len(messages.microbatch)
        self._active: list[ReferenceWindow] = []
        self._changes = source_history.changes
        self._in_force(source_history.verified, 0)
        self._begin = len(windows)
        for row, window in enumerate(windows):
            window.rows_by_kind.setdefault(messages.kind[row], []).append(row)
            window.byte_count += messages.byte_count[row]
        self._active = sorted({window.start: window for window in windows}.values(), key=START)

    def derive(self) -> list[int]:
        """Process the messages in order, and record the batches as they are after the last microbatch.

        Returns the batch of each message, as its index in the list of batches.
        """
        current, messages = 0, self._messages
        columns = zip(messages.event_time, messages.processing_time, messages.kind, messages.microbatch, strict=True)
        for row, (time, now, kind, microbatch) in islice(enumerate(columns), self._begin, None):
            if microbatch != current:
                current = microbatch
                self._apply_changes(current)
            if self._active and self._active[0].end + self._rules.max_delay <= now:
                self._sweep(now)
            self._take(row, time, now, kind, microbatch)
        self._apply_changes(len(self._source_history.rules) - 1)
        self._sweep(self._source_history.floor)
        for window in self._active:
            self._leave(window)
        return self._batch_of

    def _take(self, row: int, time: int, now: int, kind: int, microbatch: int) -> None:
        """Put a message into the window that contains its time; open or split a window if needed."""
        active, rules = self._active, self._rules
        window = active[-1] if active else None
        if window is None or not window.start <= time < window.end:  # nearly all messages belong to the last window
            at = self._place(time)
            window = active[at] if at >= 0 and time < active[at].end else self._open(at, time, now, microbatch)
        if kind in window.rows_by_kind and not rules.keeps:
            times = self._messages.event_time
            split_at = self._conflict(time, now, [times[twin] for twin in window.rows_by_kind[kind]])
            right = self._split(window, split_at, "conflict", microbatch)
            window = right if time >= split_at else window
        window.rows_by_kind.setdefault(kind, []).append(row)
        window.byte_count += self._messages.byte_count[row]
        window.changed_in = microbatch
        if rules.max_batch_bytes and window.byte_count > rules.max_batch_bytes:
            self._split_by_size(window, time, microbatch)

    def _open(self, at: int, time: int, now: int, microbatch: int) -> ReferenceWindow:
        """Open a window for a time, between the active windows `at` and `at + 1`."""
        active, rules = self._active, self._rules
        start = time
        if rules.at_arrival:
            start = now - rules.max_delay
            if at >= 0:
                start = max(start, active[at].end)
        if time >= start + rules.window:
            start = time
        end = start + rules.window
        if rules.on_calendar:
            start, end = self._cell(time, now, microbatch)
            if at >= 0:
                start = max(start, active[at].end)
        if at + 1 < len(active):
            end = min(end, active[at + 1].start)
        window = ReferenceWindow(start, end, "message", microbatch, microbatch)
        active.insert(at + 1, window)
        return window

    def _cell(self, time: int, now: int, microbatch: int) -> tuple[int, int]:
        """Return the calendar cell of a time, minus the part that windows off the calendar may have covered."""
        length, history = self._rules.window, self._source_history
        number = (time - self._rules.window_offset) // length
        start = self._rules.window_offset + number * length
        cuts = bisect_right(history.cut_in, microbatch)
        if not cuts:
            return start, start + length
        return max(start, min(history.cuts[cuts - 1], now - self._rules.max_delay)), start + length

    def _conflict(self, time: int, now: int, twins: list[int]) -> int:
        """Return where a window splits: between a time and the previous one of its type, or else the next one."""
        twin = max((twin for twin in twins if twin < time), default=min(twins))
        earlier, later = min(time, twin), max(time, twin)
        if not self._rules.at_midpoint:
            return later
        return max(earlier + (later - earlier + 1) // 2, now - self._rules.max_delay)

    def _split(self, window: ReferenceWindow, time: int, cause: str, microbatch: int) -> ReferenceWindow:
        """Split a window at a time and return the right part, a new window."""
        active, times, byte_count = self._active, self._messages.event_time, self._messages.byte_count
        at = self._place(window.start)
        end = window.end if self._rules.on_calendar else max(time + self._rules.window, window.end)
        if at + 1 < len(active):
            end = min(end, active[at + 1].start)
        right = ReferenceWindow(time, end, cause, microbatch, microbatch)
        rows_by_kind, window.rows_by_kind = window.rows_by_kind, {}
        for kind, rows in rows_by_kind.items():
            for row in rows:
                half = window if times[row] < time else right
                half.rows_by_kind.setdefault(kind, []).append(row)
        right.byte_count = sum(byte_count[row] for row in right.rows)
        window.byte_count -= right.byte_count
        window.end = time
        window.changed_in = microbatch
        active.insert(at + 1, right)
        return right

    def _split_by_size(self, window: ReferenceWindow, time: int, microbatch: int) -> None:
        """Split off the messages before a time and, if the window is still too large, those after it."""
        times = self._messages.event_time
        if any(times[row] < time for row in window.rows):
            window = self._split(window, time, "size", microbatch)
        later = [times[row] for row in window.rows if times[row] > time]
        if window.byte_count > self._rules.max_batch_bytes and later:
            self._split(window, min(later), "size", microbatch)

    def _place(self, time: int) -> int:
        """Return the index of the last active window that begins at or before a time, or -1."""
        return bisect_right(self._active, time, key=START) - 1

    def _sweep(self, now: int) -> None:
        """Close the windows that are due, in order."""
        active, delay = self._active, self._rules.max_delay
        while active and active[0].end + delay <= now:
            window = active.pop(0)
            timeout = window.end + delay
            reached = bisect_left(self._source_history.floor_values, timeout - self._raised)
            noticed = self._source_history.reached_in[min(reached, len(self._source_history.floor_values) - 1)]
            self._close(window, timeout, "timeout", max(noticed, window.changed_in, self._since))

    def _apply_changes(self, microbatch: int) -> None:
        """Apply rule changes and flushes up to a microbatch."""
        while self._active and self._next < len(self._changes) and self._changes[self._next].microbatch <= microbatch:
            change = self._changes[self._next]
            self._sweep(change.before)
            self._in_force(change.microbatch, self._next + 1)
            self._sweep(change.now)
            if change.flush:
                self._flush(change)
        if not self._active:
            self._in_force(microbatch, bisect_right(self._changes, microbatch, key=attrgetter("microbatch")))

    def _in_force(self, microbatch: int, changes: int) -> None:
        """Continue under the rules of a microbatch, with the first `changes` changes applied."""
        self._rules, self._raised = self._source_history.rules[microbatch], self._source_history.raised[microbatch]
        self._next = changes
        self._since = self._changes[changes - 1].microbatch if changes else 0

    def _flush(self, change: RulesChange) -> None:
        """Close all windows now; each ends at the cut or earlier."""
        for window in self._active:
            window.end = min(window.end, change.cut)
            self._close(window, change.now, "flush", change.microbatch)
        self._active.clear()

    def _close(self, window: ReferenceWindow, closed_at: int, reason: str, closed_microbatch: int) -> None:
        """Record a closed window, in parts if it exceeds the maximum."""
        limit, byte_count = self._rules.max_batch_bytes, self._messages.byte_count
        rows = window.rows
        large = 0 < limit < window.byte_count
        for part, inside in enumerate(self._parts(rows, limit) if large else [rows]):
            oversize = large and any(byte_count[row] > limit for row in inside)
            closed = closed_at, reason, closed_microbatch
            self._note(window, part, inside, window.end + self._rules.max_delay, oversize, closed)

    def _parts(self, rows: list[int], limit: int) -> list[list[int]]:
        """Divide messages, by time and type, into parts that stay within the maximum."""
        messages = self._messages
        parts: list[list[int]] = [[]]
        byte_count = 0
        for row in sorted(rows, key=lambda row: (messages.event_time[row], messages.kind[row])):
            if parts[-1] and byte_count + messages.byte_count[row] > limit:
                parts.append([])
                byte_count = 0
            parts[-1].append(row)
            byte_count += messages.byte_count[row]
        return parts

    def _leave(self, window: ReferenceWindow) -> None:
        """Record a window that stays open as its last change wrote it, under the rules of that microbatch."""
        rules, rows = self._source_history.rules[window.changed_in], window.rows
        limit = rules.max_batch_bytes
        oversize = 0 < limit < window.byte_count and any(self._messages.byte_count[row] > limit for row in rows)
        self._note(window, 0, rows, window.end + rules.max_delay, oversize)

    def _note(
        self, window: ReferenceWindow, part: int, rows: list[int], timeout: int, oversize: bool, closed: Closed = OPEN
    ) -> None:
        number, opened = len(self._batches), (window.open_reason, window.opened_microbatch)
        for row in rows:
            self._batch_of[row] = number
        self._batches.append((self._number, window.start, part, window.end, timeout, *opened, oversize, *closed))

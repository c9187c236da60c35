"""The windows of a stream told again, message by message, as the rules are written.

This is what the ledger is compared with, so it is written to be read: the sentences of docs/batching.md in their order,
one message after the other. It shares nothing with the code that batches. Times are microseconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from windrow.verify.columns import NONE
from windrow.verify.decisions.microbatch_history import Rules

START = attrgetter("start")


@dataclass(frozen=True, slots=True)
class Messages:
    """Accepted messages as plain lists; a message is a row in them. Those of a stream stand in processing order."""

    event_time: list[int]
    processing_time: list[int]
    kind: list[int]
    byte_count: list[int]
    microbatch: list[int]


@dataclass(frozen=True, slots=True)
class MicrobatchInput:
    """A microbatch that changed the rules or flushed, for one source: its floor before it and its `now` in it.

    A flush ends windows at `cut`, or before.
    """

    microbatch: int
    before: int
    now: int
    flush: bool
    cut: int


@dataclass(frozen=True, slots=True)
class Past:
    """What happened to a source: `heights` of its floor and in which microbatches it reached them, and the turns.

    `rules` and `raised` are by microbatch: a floor is height + raised. `floor` is where it stands at last.
    """

    rules: Sequence[Rules]
    raised: Sequence[int]
    heights: list[int]
    reached_in: list[int]
    turns: list[MicrobatchInput]
    floor: int


@dataclass(slots=True)
class Window:
    """An active window; `held` has the row of each type."""

    start: int
    end: int
    opened_by: str
    opened_in: int
    changed_in: int
    byte_count: int = 0
    held: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told:
    """The batches that came of it, one element each, and in `batch_of` the batch of each message."""

    batch_of: list[int]
    stream: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    part: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    timeout: list[int] = field(default_factory=list)
    opened_by: list[str] = field(default_factory=list)
    opened_in: list[int] = field(default_factory=list)
    closed_at: list[int] = field(default_factory=list)
    close_reason: list[str | None] = field(default_factory=list)
    closed_in: list[int] = field(default_factory=list)
    oversize: list[bool] = field(default_factory=list)


class Stream:
    """One stream: its active windows, ordered by start, and the rules in force."""

    def __init__(self, number: int, messages: Messages, past: Past, told: Told) -> None:
        """Begin without windows."""
        self._number, self._messages, self._past, self._told = number, messages, past, told
        self._active: list[Window] = []
        self._turns = past.turns
        self._in_force(0, 0)

    def tell(self, rows: Sequence[int]) -> None:
        """Take the messages of the stream, and leave its windows as they stand after the last microbatch."""
        microbatch_of, current = self._messages.microbatch, 0
        for row in rows:
            if microbatch_of[row] != current:
                current = microbatch_of[row]
                self._turn_to(current)
            self._take(row, current)
        self._turn_to(len(self._past.rules) - 1)
        self._sweep(self._past.floor)
        for window in self._active:
            self._leave(window)

    def _take(self, row: int, microbatch: int) -> None:
        """Put a message into the window that holds its time, which is opened or split where needed."""
        messages, rules = self._messages, self._rules
        time, now, kind = messages.event_time[row], messages.processing_time[row], messages.kind[row]
        self._sweep(now)
        at = self._place(time)
        if at < 0 or time >= self._active[at].end:
            window = self._open(at, time, now, microbatch)
        else:
            window = self._active[at]
            twin = window.held.get(kind)
            if twin is not None:
                split_at = max(time, messages.event_time[twin])
                right = self._split(window, split_at, "conflict", microbatch)
                window = right if time >= split_at else window
        window.held[kind] = row
        window.byte_count += messages.byte_count[row]
        window.changed_in = microbatch
        if rules.max_batch_bytes and window.byte_count > rules.max_batch_bytes:
            self._split_by_size(window, time, microbatch)

    def _open(self, at: int, time: int, now: int, microbatch: int) -> Window:
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
        if at + 1 < len(active):
            end = min(end, active[at + 1].start)
        window = Window(start, end, "message", microbatch, microbatch)
        active.insert(at + 1, window)
        return window

    def _split(self, window: Window, time: int, cause: str, microbatch: int) -> Window:
        """Divide a window at a time and return the right half, a fresh window."""
        active, times, byte_count = self._active, self._messages.event_time, self._messages.byte_count
        at = self._place(window.start)
        end = max(time + self._rules.window, window.end)
        if at + 1 < len(active):
            end = min(end, active[at + 1].start)
        held = {kind: row for kind, row in window.held.items() if times[row] >= time}
        right = Window(time, end, cause, microbatch, microbatch, sum(byte_count[row] for row in held.values()), held)
        window.held = {kind: row for kind, row in window.held.items() if times[row] < time}
        window.byte_count -= right.byte_count
        window.end = time
        window.changed_in = microbatch
        active.insert(at + 1, right)
        return right

    def _split_by_size(self, window: Window, time: int, microbatch: int) -> None:
        """Separate the message of a time from earlier ones, then, if that is not enough, from later ones."""
        times = self._messages.event_time
        if any(times[row] < time for row in window.held.values()):
            window = self._split(window, time, "size", microbatch)
        later = [times[row] for row in window.held.values() if times[row] > time]
        if window.byte_count > self._rules.max_batch_bytes and later:
            self._split(window, min(later), "size", microbatch)

    def _place(self, time: int) -> int:
        """Return the last active window that does not begin after a time, -1 when there is none."""
        active = self._active
        if active and active[-1].start <= time:
            return len(active) - 1
        return bisect_right(active, time, key=START) - 1

    def _sweep(self, now: int) -> None:
        """Close what is due, in the order of the windows."""
        active, delay = self._active, self._rules.max_delay
        while active and active[0].end + delay <= now:
            window = active.pop(0)
            timeout = window.end + delay
            reached = bisect_left(self._past.heights, timeout - self._raised)
            noticed = self._past.reached_in[min(reached, len(self._past.heights) - 1)]
            self._close(window, timeout, "timeout", max(noticed, window.changed_in, self._since))

    def _turn_to(self, microbatch: int) -> None:
        """Live through the changes of the rules and the flushes up to a microbatch."""
        while self._active and self._next < len(self._turns) and self._turns[self._next].microbatch <= microbatch:
            turn = self._turns[self._next]
            self._sweep(turn.before)
            self._in_force(turn.microbatch, self._next + 1)
            self._sweep(turn.now)
            if turn.flush:
                self._flush(turn)
        if not self._active:
            self._in_force(microbatch, bisect_right(self._turns, microbatch, key=attrgetter("microbatch")))

    def _in_force(self, microbatch: int, turns: int) -> None:
        """Go on by the rules of a microbatch, so many turns being over."""
        self._rules, self._raised = self._past.rules[microbatch], self._past.raised[microbatch]
        self._next = turns
        self._since = self._turns[turns - 1].microbatch if turns else 0

    def _flush(self, turn: MicrobatchInput) -> None:
        """Close everything now; windows end where their source's messages do."""
        for window in self._active:
            window.end = min(window.end, turn.cut)
            self._close(window, turn.now, "flush", turn.microbatch)
        self._active.clear()

    def _close(self, window: Window, closed_at: int, reason: str, closed_in: int) -> None:
        """Note a closed window, in parts where it is larger than the maximum."""
        limit, byte_count = self._rules.max_batch_bytes, self._messages.byte_count
        rows = list(window.held.values())
        large = 0 < limit < window.byte_count
        for part, inside in enumerate(self._parts(rows, limit) if large else [rows]):
            oversize = large and any(byte_count[row] > limit for row in inside)
            self._note(window, part, inside, window.end + self._rules.max_delay, oversize)
            self._told.closed_at.append(closed_at)
            self._told.close_reason.append(reason)
            self._told.closed_in.append(closed_in)

    def _parts(self, rows: list[int], limit: int) -> list[list[int]]:
        """Cut messages, in the order of time and type, wherever one more would exceed the maximum."""
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

    def _leave(self, window: Window) -> None:
        """Note a window that stays open: as its last change wrote it, under the rules of then."""
        rules, rows = self._past.rules[window.changed_in], list(window.held.values())
        limit = rules.max_batch_bytes
        oversize = 0 < limit < window.byte_count and any(self._messages.byte_count[row] > limit for row in rows)
        self._note(window, 0, rows, window.end + rules.max_delay, oversize)
        self._told.closed_at.append(NONE)
        self._told.close_reason.append(None)
        self._told.closed_in.append(NONE)

    def _note(self, window: Window, part: int, rows: list[int], timeout: int, oversize: bool) -> None:
        told = self._told
        for row in rows:
            told.batch_of[row] = len(told.start)
        told.stream.append(self._number)
        told.start.append(window.start)
        told.part.append(part)
        told.end.append(window.end)
        told.timeout.append(timeout)
        told.opened_by.append(window.opened_by)
        told.opened_in.append(window.opened_in)
        told.oversize.append(oversize)

"""A naive oracle of the batching rules and of the clock.

It follows the written rules sentence by sentence, with plain integers in microseconds and linear searches. It
shares no code with the package, so that an error would have to be made twice to stay hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Stream = tuple[str, str]


@dataclass(frozen=True, slots=True)
class OracleRules:
    """The rules; durations in microseconds, `max_batch_bytes` None for no limit."""

    window: int
    max_delay: int
    max_leap: int
    max_batch_bytes: int | None = None
    window_start: str = "arrival"
    repeats: str = "split"
    split_at: str = "message"
    window_offset: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """One measurement; `index` names it in the results, `version` says which messages came together."""

    index: int
    source: str
    key: str
    type: str
    event_time: int
    received_at: int
    sequence: int | None
    payload: bytes | str | None
    version: int

    @property
    def bytes(self) -> int:
        """The bytes that count against `max_batch_bytes`."""
        return len(self.type.encode()) + len(_encoded(self.payload))


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the ledger shows it; `messages` are message indices ordered by event time and type."""

    source: str
    key: str
    part: int
    window_start: int
    window_end: int
    timeout: int
    opened_by: str
    closed_at: int | None
    close_reason: str | None
    bytes: int
    oversize: bool
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that was not accepted, why, and by how much it missed; times in microseconds."""

    index: int
    reason: str
    off_by: int
    processing_time: int
    raised_by: int


@dataclass(slots=True)
class _Window:
    start: int
    end: int
    opened_by: str
    messages: list[Message] = field(default_factory=list)

    def ordered(self) -> list[Message]:
        return sorted(self.messages, key=lambda message: (message.event_time, message.type))


class Oracle:
    """The state of every stream and of every clock, moved by messages, ticks and flushes."""

    def __init__(self, rules: OracleRules) -> None:
        self.rules = rules
        self.floors: dict[str, int] = {}
        self.cuts: dict[str, int] = {}
        self.processing_times: dict[int, int] = {}
        self.closed: list[Batch] = []
        self.rejected: list[Rejected] = []
        self._active: dict[Stream, list[_Window]] = {}

    @property
    def open(self) -> list[Batch]:
        """The batches that may still grow, each as its only part."""
        active = [(stream, window) for stream, windows in self._active.items() for window in windows]
        return [self._batch(stream, window, 0, window.ordered()) for stream, window in active]

    def messages(self, messages: Iterable[Message]) -> None:
        """Take messages of one or more depot versions; a version must not be spread over two calls."""
        messages = list(messages)
        for version in sorted({message.version for message in messages}):
            self._take_version([message for message in messages if message.version == version])
        self._sweep()

    def tick(self, now: int, source: str | None = None) -> None:
        """Raise the floor of one known source, or of all, to `now` and close what is due."""
        for known in self.floors:
            if source in (None, known):
                self.floors[known] = max(self.floors[known], now)
        self._sweep()

    def flush(self, now: int | None = None) -> None:
        """Close all that is open, each source at `now` or at its floor if that is later."""
        if now is not None:
            self.tick(now)
        for source in self.floors:
            self._flush_source(source)

    def finish(self) -> None:
        """Close every open batch at its own timeout."""
        for stream, windows in self._active.items():
            for window in windows:
                self._emit(stream, window, window.end + self.rules.max_delay, "timeout")
            windows.clear()

    def change(self, rules: OracleRules) -> None:
        """Go on under other rules; a larger `max_delay` raises every floor: nothing closed opens again.

        No window so far ends later than one that the latest acceptable message would open.
        """
        if rules == self.rules:
            return
        for source, floor in self.floors.items():
            self._cut(source, floor + self.rules.max_leap + self.rules.window)
            self.floors[source] += max(0, rules.max_delay - self.rules.max_delay)
        self.rules = rules
        self._sweep()

    def _take_version(self, messages: Sequence[Message]) -> None:
        """Decide messages that came together: the clock they meet is that of the versions before."""
        for message in messages:
            floor = self.floors.get(message.source, message.received_at)
            self.processing_times[message.index] = max(floor, message.received_at)
        for message in sorted(messages, key=self._place_in_log):
            self._take(message, self.processing_times[message.index])
        for message in messages:
            now = self.processing_times[message.index]
            self.floors[message.source] = max(self.floors.get(message.source, now), now)

    def _place_in_log(self, message: Message) -> tuple[object, ...]:
        return (
            self.processing_times[message.index],
            (message.sequence is not None, message.sequence or 0),
            message.event_time,
            message.type,
            message.received_at,
            (message.payload is not None, _encoded(message.payload)),
        )

    def _take(self, message: Message, now: int) -> None:
        self._close_due((message.source, message.key), now)
        oldest, latest = now - self.rules.max_delay, now + self.rules.max_leap
        if message.event_time < oldest:
            self._reject(message, "too_old", oldest - message.event_time)
        elif message.event_time > latest:
            self._reject(message, "too_futuristic", message.event_time - latest)
        else:
            self._join(message, now)

    def _join(self, message: Message, now: int) -> None:
        """Put an acceptable message into the window that holds it, which is opened or split where needed."""
        windows, time = self._active.setdefault((message.source, message.key), []), message.event_time
        if not any(window.start <= time < window.end for window in windows):
            self._open_window(windows, time, now, message.source)
        window = _holding(windows, time)
        twins = [other.event_time for other in window.messages if other.type == message.type]
        if time in twins:
            self._reject(message, "duplicate", 0)
            return
        if twins and self.rules.repeats == "split":
            self._split(windows, window, self._conflict(time, twins, now), "conflict")
            window = _holding(windows, time)
        window.messages.append(message)
        if self._too_large(window):
            self._split_by_size(windows, window, time)

    def _open_window(self, windows: list[_Window], time: int, now: int, source: str) -> None:
        oldest, length, start = now - self.rules.max_delay, self.rules.window, time
        ends = [window.end for window in windows if window.end <= time]
        if self.rules.window_start == "arrival":
            start = max([oldest, *ends])
        if time >= start + length:
            start = time
        end = start + length
        if self.rules.window_start == "aligned":
            cell = time - (time - self.rules.window_offset) % length
            start, end = max([cell, *ends]), cell + length
            if source in self.cuts:
                start = max(start, min(oldest, self.cuts[source]))
        _insert(windows, _Window(start, min([end, *(each.start for each in windows if each.start > time)]), "message"))

    def _conflict(self, time: int, twins: list[int], now: int) -> int:
        """Tell where a window splits that already has messages of the type; it has several if they were kept before."""
        twin = max((twin for twin in twins if twin < time), default=min(twins))
        low, high = sorted((time, twin))
        if self.rules.split_at == "message":
            return high
        half = -(-(high - low) // 2)
        return min(high, max(low + half, now - self.rules.max_delay))

    def _split(self, windows: list[_Window], window: _Window, time: int, opened_by: str) -> _Window:
        """Divide a window at a time and return the fresh one, which begins there."""
        following = [other.start for other in windows if other.start > window.start]
        longest = window.end if self.rules.window_start == "aligned" else time + self.rules.window
        end = min([max(longest, window.end), *following])
        later = [message for message in window.messages if message.event_time >= time]
        window.messages = [message for message in window.messages if message.event_time < time]
        window.end = time
        right = _Window(time, end, opened_by, later)
        _insert(windows, right)
        return right

    def _split_by_size(self, windows: list[_Window], window: _Window, time: int) -> None:
        """Separate the message at a time from earlier ones, then, if that is not enough, from later ones."""
        if any(message.event_time < time for message in window.messages):
            window = self._split(windows, window, time, "size")
        later = [message.event_time for message in window.messages if message.event_time > time]
        if self._too_large(window) and later:
            self._split(windows, window, min(later), "size")

    def _too_large(self, window: _Window) -> bool:
        limit = self.rules.max_batch_bytes
        return limit is not None and _bytes(window.messages) > limit

    def _reject(self, message: Message, reason: str, off_by: int) -> None:
        now = self.processing_times[message.index]
        self.rejected.append(Rejected(message.index, reason, off_by, now, now - message.received_at))

    def _sweep(self) -> None:
        """Close what is due in every stream, also in the silent ones, by the clock of their source."""
        for stream in self._active:
            self._close_due(stream, self.floors[stream[0]])

    def _close_due(self, stream: Stream, now: int) -> None:
        for window in list(self._active.get(stream, [])):
            timeout = window.end + self.rules.max_delay
            if now >= timeout:
                self._active[stream].remove(window)
                self._emit(stream, window, timeout, "timeout")

    def _flush_source(self, source: str) -> None:
        """Cut the open windows after the last event of the source and close them now."""
        streams = [stream for stream, windows in self._active.items() if stream[0] == source and windows]
        if not streams:
            return
        now = self.floors[source]
        cut = 1 + max(self._active[stream][-1].ordered()[-1].event_time for stream in streams)
        for stream in streams:
            for window in self._active[stream]:
                window.end = min(window.end, cut)
                self._emit(stream, window, now, "flush")
            self._active[stream].clear()
        self.floors[source] = max(now, cut + self.rules.max_delay)
        self._cut(source, cut)

    def _cut(self, source: str, time: int) -> None:
        """Note that all windows that may not lie on the calendar end by a time."""
        self.cuts[source] = max(time, self.cuts.get(source, time))

    def _emit(self, stream: Stream, window: _Window, closed_at: int, reason: str) -> None:
        for number, messages in enumerate(self._parts(window)):
            self.closed.append(self._batch(stream, window, number, messages, closed_at, reason))

    def _parts(self, window: _Window) -> list[list[Message]]:
        """The messages of a window in order, cut wherever one more would exceed the maximum."""
        parts: list[list[Message]] = [[]]
        limit = self.rules.max_batch_bytes
        for message in window.ordered():
            if parts[-1] and limit is not None and _bytes(parts[-1]) + message.bytes > limit:
                parts.append([])
            parts[-1].append(message)
        return parts

    def _batch(
        self,
        stream: Stream,
        window: _Window,
        part: int,
        messages: Sequence[Message],
        closed_at: int | None = None,
        close_reason: str | None = None,
    ) -> Batch:
        limit = self.rules.max_batch_bytes
        return Batch(
            *stream,
            part=part,
            window_start=window.start,
            window_end=window.end,
            timeout=window.end + self.rules.max_delay,
            opened_by=window.opened_by,
            closed_at=closed_at,
            close_reason=close_reason,
            bytes=_bytes(messages),
            oversize=limit is not None and any(message.bytes > limit for message in messages),
            messages=tuple(message.index for message in messages),
        )


def _encoded(payload: bytes | str | None) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload or b""


def _bytes(messages: Iterable[Message]) -> int:
    return sum(message.bytes for message in messages)


def _holding(windows: Iterable[_Window], time: int) -> _Window:
    return next(window for window in windows if window.start <= time < window.end)


def _insert(windows: list[_Window], window: _Window) -> None:
    windows.append(window)
    windows.sort(key=lambda window: window.start)

"""Logs of messages, ticks and flushes, and the rules under which they are batched, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LogRules:
    """The rules of a log; durations in microseconds, `max_batch_bytes` None for no limit."""

    window: int
    max_delay: int
    max_lead: int
    max_batch_bytes: int | None = None
    window_anchor: str = "arrival"
    on_repeat: str = "split"
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
    def byte_count(self) -> int:
        """The bytes that count against `max_batch_bytes`."""
        payload = self.payload.encode() if isinstance(self.payload, str) else self.payload or b""
        return len(self.type.encode()) + len(payload)


Version = tuple[Message, ...]


@dataclass(frozen=True)
class Tick:
    """The clocks of all known sources reach `now`."""

    now: int


@dataclass(frozen=True)
class Flush:
    """All that is open closes, at `now` or, without it, at the floor of each source."""

    now: int | None


@dataclass(frozen=True)
class Call:
    """The arguments of one call of `windrow.batch`."""

    messages: Version
    now: int | None = None
    flush: bool = False


@dataclass(frozen=True)
class Log:
    """Rules and what happens under them; without `versioned` the table names no version: each row is its own."""

    rules: LogRules
    steps: tuple[Version | Tick | Flush, ...]
    versioned: bool
    binary: bool = False

    @property
    def messages(self) -> list[Message]:
        """All messages, as written."""
        return [message for step in self.steps if isinstance(step, tuple) for message in step]

    def calls(self, cuts: int = 0) -> Iterator[Call]:
        """Return the calls that play the log; bit `n` of `cuts` ends a call after step `n`."""
        pending: Version = ()
        for number, step in enumerate(self.steps):
            if isinstance(step, tuple):
                pending += step
            else:
                yield Call(pending, step.now, isinstance(step, Flush))
                pending = ()
            if cuts >> number & 1:
                yield Call(pending)
                pending = ()
        if pending:
            yield Call(pending)

    def with_messages(self, messages: Iterable[Message]) -> Log:
        """Return a log of these messages alone, one version after the other."""
        versions: dict[int, Version] = {}
        for message in messages:
            versions[message.version] = (*versions.get(message.version, ()), message)
        return replace(self, steps=tuple(versions[version] for version in sorted(versions)))

    def then(self, *steps: Version | Tick | Flush) -> Log:
        """Return the log with more steps behind it."""
        return replace(self, steps=self.steps + steps)

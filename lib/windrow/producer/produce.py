"""Produce: the lines of an input into a depot, where line N of it is message N of its producer.

So whoever gives the same input again goes on behind what is in the depot, whatever ended the process before. For that
each line counts, also one that is no message: it goes in as a row that the batcher rejects. And a portion of lines is
sent when the one before it is in the depot, because a portion that fails must not leave a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from windrow.errors import MessageRefused, OtherInput, WindrowError
from windrow.producer.delivery import Ack, Position
from windrow.producer.input import Fingerprint, Input
from windrow.producer.lines import Fault, Portion, Reader
from windrow.producer.producer import Producer
from windrow.settings.settings import ProducerPart

TOLD = 10  # faults that are told one by one


@dataclass(frozen=True, slots=True)
class Listener:
    """What is called while an input is produced.

    `resumed` with the lines that were in the depot before, `committed` with the messages of this input that are there
    now, `faulty` with each of the first lines that are no messages.
    """

    resumed: Callable[[int], None]
    committed: Callable[[int], None]
    faulty: Callable[[Fault], None]


@dataclass(slots=True)
class Produced:
    """What became of an input.

    `messages` lines were sent, of which `rejected` are no messages, after `skipped` ones that were in the depot before.
    """

    messages: int = 0
    rejected: int = 0
    skipped: int = 0
    unfinished: bool = False
    stopped: bool = False
    sequence: int = 0
    depot_version: int | None = None
    seconds: float = 0.0
    messages_per_second: float = 0.0
    faults: list[Fault] = field(default_factory=list)

    @property
    def line(self) -> int:
        """Return the last line that is in the depot."""
        return self.skipped + self.messages


class Production:
    """Sends the lines of one input."""

    def __init__(
        self, producer: Producer, lines: Input, reader: Reader, chosen: ProducerPart, listener: Listener
    ) -> None:
        """Send what `lines` gives and `reader` understands, in portions as `chosen` has them."""
        self._producer, self._lines, self._reader, self._listener = producer, lines, reader, listener
        self._limits = (chosen.batch_rows, chosen.batch_bytes, chosen.linger_ms / 1_000)
        self._fingerprint = Fingerprint()
        self._taken = 0
        self._flying: tuple[Future[Ack], Portion] | None = None
        self.done = Produced()

    def run(self, resume: bool, strict: bool) -> Produced:
        """Send all lines until the end or a stop, and return what became of them.

        With `resume` only those behind what is in the depot; with `strict` only those before one that is no message.
        Raises OtherInput, MessageRefused, and what the producer raises, with the line up to which all is in the depot.
        """
        began = time.monotonic()
        try:
            position = self._producer.position()
            self.done.sequence = position.sequence
            if resume:
                self._skip(position)
            self._send_all(resume, strict)
        except OtherInput:
            raise
        except WindrowError as error:
            raise type(error)(error.message, f"{error.hint} {self._reached(resume)}") from error
        self.done.stopped = self._lines.stopped
        self.done.seconds = time.monotonic() - began
        self.done.messages_per_second = self.done.messages / max(self.done.seconds, 1e-6)
        return self.done

    def _skip(self, position: Position) -> None:
        """Pass over the lines that are in the depot. Raises OtherInput when they are not those that were sent."""
        rows, byte_count, seconds = self._limits
        mark = None
        while self._taken < position.sequence:
            lines = self._lines.take(min(rows, position.sequence - self._taken), byte_count, seconds)
            if not lines and self._lines.stopped:
                return
            if not lines:
                raise self._other(f"the input has {self._taken:,} lines, but {position.sequence:,} were sent")
            mark = self._fingerprint.add(lines)
            self._taken += len(lines)
        if mark != position.mark:
            raise self._other(f"its first {position.sequence:,} lines are not those that were sent")
        self.done.skipped = self._taken
        if self._taken:
            self._listener.resumed(self._taken)

    def _send_all(self, resume: bool, strict: bool) -> None:
        while True:
            if not self._lines.ready():
                self._settle()
            lines = self._lines.take(*self._limits)
            if not lines:
                break
            self._send(lines, resume, strict)
        self._settle()

    def _send(self, lines: list[bytes], resume: bool, strict: bool) -> None:
        """Send a portion behind those before it; with `strict` the part before a line that is no message, and raise."""
        portion = self._reader.read(lines, self._taken + 1, time.time_ns() // 1_000)
        if self._lines.unfinished and portion.faults and portion.faults[-1].line == portion.last:
            self.done.unfinished, portion = True, portion.before(portion.last)
        fault = portion.faults[0] if strict and portion.faults else None
        if fault is not None:
            portion = portion.before(fault.line)
        self._settle()
        if rows := portion.table.num_rows:
            mark = self._fingerprint.add(lines[:rows]) if resume else None
            self._flying = self._producer.send_many(portion.table, mark), portion
            self._taken = portion.last
        if fault is not None:
            self._settle()
            raise MessageRefused(
                f"line {fault.line:,} is no message: {fault.reason}", "Mend it, or leave out --strict."
            )

    def _settle(self) -> None:
        """Wait until the portion that is under way is in the depot."""
        if self._flying is None:
            return
        (future, portion), self._flying = self._flying, None
        ack = future.result()
        done = self.done
        for fault in portion.faults[: TOLD - len(done.faults)]:
            done.faults.append(fault)
            self._listener.faulty(fault)
        done.messages += portion.table.num_rows
        done.rejected += len(portion.faults)
        done.sequence, done.depot_version = ack.sequence, ack.version
        self._listener.committed(done.messages)

    def _other(self, why: str) -> OtherInput:
        return OtherInput(
            f"this is not the input that producer {self._producer.producer_id!r} has sent so far: {why}",
            "Give each input an id of its own (--id); or send all of this one, behind what is there, with --no-resume.",
        )

    def _reached(self, resume: bool) -> str:
        """Say from where to go on after an error."""
        if not self.done.line:
            return "No line of this input is in the depot."
        again = "the same command goes on behind them" if resume else "go on behind them"
        return f"Lines up to {self.done.line:,} are in the depot: {again}."

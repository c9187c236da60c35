"""Send the lines of an input to a depot, where line N becomes message N of the producer.

So the same command can be run again after any failure: it resumes after the last committed line. For this, every line
counts: a line that is not a message becomes a row that the batcher rejects. A portion of lines is sent only after the
previous one is committed, because a portion that fails must not leave a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from windrow.errors import InputMismatchError, InvalidMessageError, WindrowError
from windrow.model.durations import SECOND
from windrow.operate.log import log
from windrow.producer.delivery import Ack, Position
from windrow.producer.input import Fingerprint, LineInput
from windrow.producer.lines import Fault, LineBatch, LineReader
from windrow.producer.producer import Producer
from windrow.settings.producer import BATCH_BYTES, ProducerOptions

TOLD = 10  # faults that are logged one by one


@dataclass(slots=True)
class ProduceResult:
    """The result: how many lines were sent, of which `rejected` are no messages; `skipped` were committed before."""

    message_count: int = 0
    rejected: int = 0
    skipped: int = 0
    has_unterminated_line: bool = False
    stopped: bool = False
    sequence: int = 0
    depot_version: int | None = None
    seconds: float = 0.0
    messages_per_second: float = 0.0
    invalid_lines: list[Fault] = field(default_factory=list)

    @property
    def line(self) -> int:
        """Return the last line that is in the depot."""
        return self.skipped + self.message_count


class LineSender:
    """Sends the lines of one input."""

    def __init__(
        self,
        producer: Producer,
        lines: LineInput,
        reader: LineReader,
        chosen: ProducerOptions,
        committed: Callable[[int], None],
    ) -> None:
        """Send the messages that `reader` reads from `lines`, in portions of the producer's batch size.

        `committed` is called with the number of messages of this input that are in the depot.
        """
        self._producer, self._lines, self._reader, self._committed = producer, lines, reader, committed
        self._limits = (chosen.max_commit_rows, BATCH_BYTES, chosen.linger / SECOND)
        self._fingerprint = Fingerprint()
        self._taken = 0
        self._flying: tuple[Future[Ack], LineBatch] | None = None
        self.done = ProduceResult()

    def run(self, resume: bool, strict: bool) -> ProduceResult:
        """Send all lines until the end or a stop, and return the result.

        With `resume`, skip the lines that the depot has; with `strict`, stop before a line that is not a message.
        Raises InputMismatchError, InvalidMessageError and the producer's errors; their hints name the last committed
        line.
        """
        began = time.monotonic()
        try:
            position = self._producer.position()
            self.done.sequence = position.sequence
            if resume:
                self._skip(position)
            self._send_all(resume, strict)
        except InputMismatchError:
            raise
        except WindrowError as error:
            raise type(error)(error.message, f"{error.hint} {self._describe_position(resume)}") from error
        self.done.stopped = self._lines.stopped
        self.done.seconds = time.monotonic() - began
        self.done.messages_per_second = self.done.message_count / max(self.done.seconds, 1e-6)
        return self.done

    def _skip(self, position: Position) -> None:
        """Skip the lines that the depot has. Raises InputMismatchError if they are not the ones that were sent."""
        rows, byte_count, seconds = self._limits
        mark = None
        while self._taken < position.sequence:
            lines = self._lines.take(min(rows, position.sequence - self._taken), byte_count, seconds)
            if not lines and self._lines.stopped:
                return
            if not lines:
                raise self._input_error(f"the input has {self._taken:,} lines, but {position.sequence:,} were sent")
            mark = self._fingerprint.add(lines)
            self._taken += len(lines)
        if mark != position.mark:
            raise self._input_error(f"its first {position.sequence:,} lines are not the ones that were sent")
        self.done.skipped = self._taken
        if self._taken:
            log.info("resumed: these lines are in the depot", lines=self._taken)

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
        """Send the next portion; with `strict`, only the lines before one that is not a message, then raise."""
        portion = self._reader.read(lines, self._taken + 1, time.time_ns() // 1_000)
        if self._lines.unfinished and portion.faults and portion.faults[-1].line == portion.last:
            self.done.has_unterminated_line, portion = True, portion.before(portion.last)
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
            raise InvalidMessageError(
                f"line {fault.line:,} is not a message: {fault.reason}", "Fix it, or leave out --strict."
            )

    def _settle(self) -> None:
        """Wait until the portion in flight is committed."""
        if self._flying is None:
            return
        (future, portion), self._flying = self._flying, None
        ack = future.result()
        result = self.done
        for fault in portion.faults[: TOLD - len(result.invalid_lines)]:
            result.invalid_lines.append(fault)
            log.warning("no message", line=fault.line, reason=fault.reason)
        result.message_count += portion.table.num_rows
        result.rejected += len(portion.faults)
        result.sequence, result.depot_version = ack.sequence, ack.version
        self._committed(result.message_count)

    def _input_error(self, why: str) -> InputMismatchError:
        return InputMismatchError(
            f"this is not the input that producer {self._producer.producer_id!r} has sent so far: {why}",
            "Use another id for each input (--id), or send all lines of this one with --no-resume.",
        )

    def _describe_position(self, resume: bool) -> str:
        """Say where to resume after an error."""
        if not self.done.line:
            return "No line of this input is in the depot."
        again = "the same command resumes after them" if resume else "resume after them"
        return f"Lines up to {self.done.line:,} are in the depot: {again}."

"""A delivery: the future of a sent message, which completes with its acknowledgement or an error; and a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa

from windrow.model import chunks
from windrow.producer.row import OutgoingRow, number_rows, required_chunks, table_of

LOG = logging.getLogger("windrow.producer")


@dataclass(frozen=True, slots=True)
class Ack:
    """A message is in the depot: the depot version that holds it, and its number among its producer's, from 1.

    For `send_many` it is the number of the last message.
    """

    version: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a producer in the depot: the number of its last message (0 for none), mark and fingerprint."""

    sequence: int
    mark: int | None
    fingerprint: int | None = None


class Delivery(Future[Ack]):
    """The future of an acknowledgement. It cannot be cancelled: a sent message is delivered or fails with an error.

    `waiting` is called once, when a thread begins to wait: if all senders wait, nobody is left to send more.
    """

    def __init__(self, waiting: Callable[[], None]) -> None:
        super().__init__()
        self._waiting: Callable[[], None] | None = waiting
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Ack:
        """Return the acknowledgement, or raise the message's error; TimeoutError after `timeout` seconds."""
        self.note_waiter()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the message's error, None if it is acknowledged; raise TimeoutError after `timeout` seconds."""
        self.note_waiter()
        return super().exception(timeout)

    def note_waiter(self) -> None:
        """Note that a thread waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not self.done():
            waiting()

    def settle(self, outcome: Ack | BaseException) -> None:
        """Complete the future, unless it is complete. Errors of callbacks are logged, even those that end a thread."""
        self._waiting = None  # it refers to the batch, which would stay in memory as long as the future
        try:
            if isinstance(outcome, Ack):
                self.set_result(outcome)
            else:
                self.set_exception(outcome)
        except InvalidStateError:
            return
        except BaseException:
            LOG.exception("a callback of a message raised")


@dataclass(slots=True, eq=False)
class Batch:
    """Single messages in order, or one table of messages.

    `begun` and `deadline` are monotonic seconds: when the first message came, and when it is given up. A `sealed` batch
    accepts no more messages. `reserved` is its share of the buffer in bytes. `note` identifies its commit in the log,
    and `mark` and `fingerprint` are the sender's numbers, which the log keeps with it.
    """

    begun: float
    deadline: float
    sent_table: pa.Table | None = None
    mark: int | None = None
    fingerprint: int | None = None
    sealed: bool = False
    reserved: int = 0
    awaited: int = 0
    sent: list[OutgoingRow] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    note: str = field(default_factory=lambda: uuid4().hex)

    @property
    def messages(self) -> int:
        """Return the number of messages."""
        return len(self.sent) if self.sent_table is None else self.sent_table.num_rows

    @property
    def all_wait(self) -> bool:
        """Tell whether all of its messages are awaited, so that no sender is left to add more."""
        return self.awaited == len(self.deliveries)

    def reserve(self, byte_count: int, now: float, waiting: Callable[[Batch], None]) -> Delivery:
        """Reserve buffer space for a message or a table, and return its delivery."""
        delivery = Delivery(lambda: waiting(self))
        self.reserved += byte_count
        self.times.append(now)
        self.deliveries.append(delivery)
        return delivery

    def table(self, first: int, schema: pa.Schema) -> pa.Table:
        """Return the messages or chunks to write, numbered from `first`. Raises InvalidMessageError."""
        sent = table_of(zip(*self.sent, strict=True), schema) if self.sent_table is None else self.sent_table
        whole = number_rows(sent, first)
        return required_chunks(whole, first) if schema == chunks.RAW else whole

    def acknowledge(self, version: int, first: int) -> None:
        """Complete all deliveries."""
        if self.sent_table is not None:
            self.deliveries[0].settle(Ack(version, first + self.messages - 1))
            return
        for at, delivery in enumerate(self.deliveries):
            delivery.settle(Ack(version, first + at))

    def fail(self, error: BaseException) -> None:
        """Fail all deliveries."""
        for delivery in self.deliveries:
            delivery.settle(error)

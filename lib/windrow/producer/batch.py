"""A batch: messages that are committed together, and the futures of their acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa

from windrow.model import chunks
from windrow.producer.delivery import Ack, Delivery
from windrow.producer.row import Sent, numbered, required_chunks, table_of


@dataclass(slots=True, eq=False)
class Batch:
    """Single messages in order, or one table of messages.

    `begun` and `deadline` are monotonic seconds: when the first message came, and when it is given up. A `sealed` batch
    takes no more messages. `reserved` is its share of the buffer in bytes. `note` identifies its commit in the log, and
    `mark` is a number of the sender's that the log keeps with it.
    """

    begun: float
    deadline: float
    given: pa.Table | None = None
    mark: int | None = None
    sealed: bool = False
    reserved: int = 0
    awaited: int = 0
    sent: list[Sent] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    note: str = field(default_factory=lambda: uuid4().hex)

    @property
    def messages(self) -> int:
        """Return the number of messages."""
        return len(self.sent) if self.given is None else self.given.num_rows

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
        """Return the messages or chunks to write, numbered from `first`. Raises MessageRefused."""
        sent = table_of(zip(*self.sent, strict=True), schema) if self.given is None else self.given
        whole = numbered(sent, first)
        return required_chunks(whole, first) if schema == chunks.RAW else whole

    def acknowledge(self, version: int, first: int) -> None:
        """Complete all deliveries."""
        if self.given is not None:
            self.deliveries[0].settle(Ack(version, first + self.messages - 1))
            return
        for at, delivery in enumerate(self.deliveries):
            delivery.settle(Ack(version, first + at))

    def fail(self, error: Exception) -> None:
        """Fail all deliveries."""
        for delivery in self.deliveries:
            delivery.settle(error)

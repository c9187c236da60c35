"""A batch: messages that are committed together, and the deliveries that end with it."""

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
    """Single messages as they came, or one table as it was given.

    `begun` and `deadline` are monotonic seconds: when its first message came, and when that is given up. A `sealed`
    batch takes no more. `reserved` is what it holds of the buffer, `note` is what its commit is known by, `mark` is a
    number of the sender's that the log keeps with it.
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
        """Return how many messages it has."""
        return len(self.sent) if self.given is None else self.given.num_rows

    @property
    def all_wait(self) -> bool:
        """Tell whether somebody waits for every message of it, so that nobody is left to send more."""
        return self.awaited == len(self.deliveries)

    def add(self, row: Sent, byte_count: int, now: float, waiting: Callable[[Batch], None]) -> Delivery:
        """Take a message."""
        delivery = self._promise(byte_count, now, waiting)
        self.sent.append(row)
        return delivery

    def hold(self, byte_count: int, now: float, waiting: Callable[[Batch], None]) -> Delivery:
        """Promise the table that was given."""
        return self._promise(byte_count, now, waiting)

    def _promise(self, byte_count: int, now: float, waiting: Callable[[Batch], None]) -> Delivery:
        delivery = Delivery(lambda: waiting(self))
        self.reserved += byte_count
        self.times.append(now)
        self.deliveries.append(delivery)
        return delivery

    def table(self, first: int, schema: pa.Schema) -> pa.Table:
        """Return the messages or chunks as they are written, numbered from `first`. Raises MessageRefused."""
        sent = table_of(zip(*self.sent, strict=True), schema) if self.given is None else self.given
        whole = numbered(sent, first)
        return required_chunks(whole, first) if schema == chunks.RAW else whole

    def acknowledge(self, version: int, first: int) -> None:
        """End all deliveries well."""
        if self.given is not None:
            self.deliveries[0].settle(Ack(version, first + self.messages - 1))
            return
        for at, delivery in enumerate(self.deliveries):
            delivery.settle(Ack(version, first + at))

    def fail(self, error: Exception) -> None:
        """End all deliveries with an error."""
        for delivery in self.deliveries:
            delivery.settle(error)

"""A partition of a Kafka topic on its way into the depot: its offset is in the same commit as its messages.

Each partition has a producer of its own, whose mark in the depot's log is the next offset. A worker that lost the
partition and does not know it yet is fenced like any second process with the same producer id. The fingerprint of the
last message is recorded, too. That message is read again first, because a broker that lost messages assigns their
offsets to new ones.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from windrow.delta.locations import absolute
from windrow.errors import ensure
from windrow.model import messages
from windrow.producer.bridge.kafka_records import KafkaReader
from windrow.producer.bridge.settings import payload_of
from windrow.producer.bridge.summary import KafkaStats
from windrow.producer.delivery import Ack
from windrow.producer.lines import LineBatch
from windrow.producer.producer import Producer
from windrow.settings.bridges import KafkaSettings
from windrow.settings.settings import Settings


def producer_id(kafka: KafkaSettings, name: str) -> str:
    """Return the id of the producer of a topic, or of `topic/partition`."""
    return f"kafka:{kafka.group_id}:{name}"


def producer_of(settings: Settings, name: str) -> Producer:
    """Open the producer of a topic, or of `topic/partition`."""
    kafka, options = settings.kafka, settings.producer_options.model_dump()
    return Producer(
        absolute(settings.depot),
        producer_id(kafka, name),
        payload=payload_of(settings),
        retention=settings.retention,
        **options,
    )


def record(producer: Producer, mark: int, fingerprint: int | None = None) -> None:
    """Commit the numbers without messages."""
    producer.send_many(messages.schema().empty_table(), mark, fingerprint).result()


UNKNOWN = 0  # the fingerprint where no message was read


def fingerprint_of(message: Any) -> int:
    """Return a 63-bit hash that tells a message from others with the same offset."""
    content = repr((message.timestamp()[1], message.key(), message.value()))
    return int.from_bytes(blake2b(content.encode(), digest_size=8).digest()) >> 1


class Partition:
    """A partition of this worker."""

    def __init__(self, settings: Settings, topic: str, number: int) -> None:
        """Open its producer, then read its offset: a commit in between fences this worker."""
        self.topic, self.number = topic, number
        self._producer = producer_of(settings, f"{topic}/{number}")
        payload = pa.binary() if self._producer.binary else pa.string()
        self._records = KafkaReader(settings.kafka, self.name, settings.producer.max_message_bytes, payload)
        position = self._producer.position()
        self.is_known = position.mark is not None
        self.next = self._done = position.mark or 0
        self._fingerprint = position.fingerprint or UNKNOWN
        self.is_compared = True
        self.end, self.ends_at = 0, -1
        self.buffered: list[Any] = []
        self._flying: tuple[Future[Ack], LineBatch] | None = None

    @property
    def name(self) -> str:
        """Return `topic/partition`."""
        return f"{self.topic}/{self.number}"

    @property
    def is_settled(self) -> bool:
        """Tell whether nothing is in flight, or its outcome is known."""
        return self._flying is None or self._flying[0].done()

    @property
    def reached(self) -> int:
        """Return the offset up to which the depot has the partition.

        Once everything is read, it also covers control records, and messages of aborted transactions.
        """
        return self._done if self.buffered or self._flying else max(self._done, self.ends_at)

    @property
    def lag(self) -> int:
        """Return how many offsets the broker has that the depot does not have."""
        return max(self.end - self.reached, 0)

    @property
    def position(self) -> int:
        """Return the offset to read from: that of the last message in the depot, until it is compared."""
        return self.next if self.is_compared else self.next - 1

    def seek(self, offset: int) -> None:
        """Move to an offset, and record it in the depot: a later run continues there, whatever arrives until then."""
        # guard: kafka-start-recorded
        record(self._producer, offset, UNKNOWN)
        self.next = self._done = offset
        self._fingerprint = UNKNOWN

    def resume(self, low: int) -> None:
        """Read the last message in the depot again, to compare it, if it is known and the broker may still have it."""
        self.is_compared = self._fingerprint == UNKNOWN or self.next <= low

    def is_last(self, message: Any) -> bool:
        """Tell whether a message with the offset of the last one in the depot is that one."""
        return fingerprint_of(message) == self._fingerprint

    def buffer(self, message: Any) -> None:
        """Buffer a message, to be sent with the next ones."""
        after = self.buffered[-1].offset() + 1 if self.buffered else self.next
        ensure(message.offset() >= after, f"the offsets of {self.name} grow")
        self.buffered.append(message)

    def send(self, counts: KafkaStats) -> str:
        """Send buffered messages, once earlier ones are committed; return what is wrong with the first invalid one.

        Raises like `settle`.
        """
        self.settle(counts)
        if not self.buffered:
            return ""
        portion = self._records.read(self.buffered, 0, time.time_ns() // 1_000)
        self.next, self._fingerprint = self.buffered[-1].offset() + 1, fingerprint_of(self.buffered[-1])
        counts.received += len(self.buffered)
        self.buffered = []
        self._flying = self._producer.send_many(portion.table, self.next, self._fingerprint), portion
        return portion.faults[0].reason if portion.faults else ""

    def settle(self, counts: KafkaStats) -> None:
        """Wait until nothing is in flight. Raises the producer's errors."""
        if self._flying is None:
            return
        (future, portion), self._flying = self._flying, None
        counts.depot_version = future.result().version
        counts.committed += portion.table.num_rows
        counts.invalid += len(portion.faults)
        self._done = self.next

    def close(self) -> None:
        """Close its producer."""
        self._producer.close(0)

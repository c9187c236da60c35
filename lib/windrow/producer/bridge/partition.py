"""A partition of a Kafka topic on its way into the depot: its offset is in the same commit as its messages.

Each partition has a producer of its own, whose mark in the depot's log is the next offset. A worker that lost the
partition and does not know it yet is fenced like any second process with the same producer id.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from datetime import datetime

import pyarrow as pa

from windrow.delta.locations import absolute
from windrow.errors import OffsetsLost, SettingsError
from windrow.model import messages
from windrow.model.timestamps import microseconds_of
from windrow.producer.bridge.records import Record, Records
from windrow.producer.bridge.summary import KafkaCounts
from windrow.producer.delivery import Ack
from windrow.producer.lines import Portion
from windrow.producer.producer import Producer
from windrow.settings.settings import KafkaPart, Settings

EARLIEST, LATEST = -2, -1  # as offsets, in Kafka and in Spark


def producer_of(settings: Settings, name: str) -> Producer:
    """Open the producer of a topic, or of `topic/partition`."""
    options = settings.producer.model_dump()
    name = producer_id(settings.kafka, name)
    return Producer(absolute(settings.depot), name, payload=settings.kafka.payload, keep=settings.keep, **options)


def producer_id(kafka: KafkaPart, name: str) -> str:
    """Return the id under which the depot knows a topic, or `topic/partition`."""
    return f"kafka:{kafka.group}:{name}"


def record(producer: Producer, mark: int) -> None:
    """Commit a mark without messages."""
    producer.send_many(messages.schema(pa.string()).empty_table(), mark).result()


class Partition:
    """A partition that this worker has."""

    def __init__(self, settings: Settings, topic: str, number: int) -> None:
        """Open its producer, then read its offset: what is committed in between fences this worker."""
        self.topic, self.number = topic, number
        self._producer = producer_of(settings, f"{topic}/{number}")
        payload = pa.binary() if self._producer.binary else pa.string()
        limit = settings.producer.max_message_bytes
        self._records = Records(settings.kafka, topic, number, limit, payload)
        self.next = self._producer.position().mark
        self.done, self.end, self.is_at_end = self.next, 0, False
        self.held: list[Record] = []
        self._flying: tuple[Future[Ack], Portion, int] | None = None

    @property
    def is_settled(self) -> bool:
        """Tell whether nothing is in flight, or its outcome is known."""
        return self._flying is None or self._flying[0].done()

    @property
    def reached(self) -> int:
        """Return the offset up to which the depot has it, with the control records before the end."""
        done = self.done or 0
        return done if self.held or self._flying else max(done, self.end)

    @property
    def begun(self) -> int:
        """Return the next offset to read."""
        return self.next or 0

    def begin(self, offset: int, low: int) -> None:
        """Begin a partition that the depot does not know, and record where if messages are skipped on purpose."""
        self.next = self.done = offset
        if offset > low:
            # guard: kafka-start-recorded
            record(self._producer, offset)

    def send(self, counts: KafkaCounts) -> None:
        """Send what is held, once what was sent before is committed. Raises as `settle`."""
        self.settle(counts)
        if not self.held:
            return
        records, self.held = self.held, []
        portion = self._records.read(records, 0, time.time_ns() // 1_000)
        self.next = records[-1].offset() + 1
        counts.received += len(records)
        self._flying = self._producer.send_many(portion.table, self.next), portion, self.next

    def settle(self, counts: KafkaCounts) -> None:
        """Wait until nothing is in flight. Raises the producer's errors."""
        if self._flying is None:
            return
        (future, portion, after), self._flying = self._flying, None
        counts.depot_version = future.result().version
        counts.committed += portion.table.num_rows
        counts.invalid += len(portion.faults)
        self.done = after

    @property
    def fault(self) -> str:
        """Return why the first invalid message in flight is none, empty if there is none."""
        return self._flying[1].faults[0].reason if self._flying and self._flying[1].faults else ""

    def close(self) -> None:
        """Close its producer."""
        self._producer.close(0)


class Start:
    """Where a partition begins that the depot does not know."""

    def __init__(self, text: str) -> None:
        """Read `earliest`, `latest`, `timestamp:ISO`, or offsets as Spark writes them. Raises SettingsError."""
        self.milliseconds: int | None = None
        self._offsets: dict[str, dict[str, int]] = {}
        self._default = LATEST if text == "latest" else EARLIEST
        if text in {"earliest", "latest"}:
            return
        try:
            if text.startswith("timestamp:"):
                self.milliseconds = microseconds_of(_aware(text.removeprefix("timestamp:"))) // 1_000
                return
            self._offsets = {
                topic: {str(int(number)): _offset(offset) for number, offset in offsets.items()}
                for topic, offsets in json.loads(text).items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"start = {text!r} is not valid: {error}",
                'Use earliest, latest, timestamp:2026-01-31T00:00:00Z, or offsets as {"topic": {"0": 7}}.',
            ) from error

    def offset(self, topic: str, number: int, low: int, high: int) -> int:
        """Return where a partition begins that has the offsets from `low` to before `high`. Raises OffsetsLost."""
        offset = self._offsets.get(topic, {}).get(str(number), self._default)
        if offset in {EARLIEST, LATEST}:
            return low if offset == EARLIEST else high
        if not low <= offset <= high:
            raise OffsetsLost(
                f"{topic}/{number} has the offsets {low:,} to {high:,}, and is to start at {offset:,}",
                "Correct start in [kafka].",
            )
        return offset


def _aware(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("the time has no zone")
    return moment


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError(f"{value!r} is not an offset")
    return value

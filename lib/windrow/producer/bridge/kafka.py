"""The Kafka bridge: a worker of a consumer group that copies its partitions to a depot.

What the depot's log says about a partition decides where it goes on. Kafka's committed offsets follow the depot, for
tools that show the lag.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from windrow.delta.locations import absolute
from windrow.delta.table import open_table
from windrow.errors import BrokerRefused, MissingExtra, OffsetsLost, ProducerFenced, SettingsError, TableMissing
from windrow.producer.bridge.lines import Lines
from windrow.producer.bridge.partition import Partition, Start, producer_id, producer_of, record
from windrow.producer.bridge.password import password
from windrow.producer.bridge.records import require_valid
from windrow.producer.bridge.summary import KafkaCounts, KafkaSummary
from windrow.producer.writer import marks
from windrow.settings.settings import KafkaPart, Settings

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient
except ImportError as missing:
    hint = "pip install 'windrow-delta[kafka]'"
    raise MissingExtra("a bridge from Kafka needs confluent-kafka", hint) from missing

LOG = logging.getLogger("windrow.kafka")
TICK = 0.2  # seconds, the longest wait before the clock is checked
ANSWER = 30.0  # seconds that a broker has to answer
IDENTITY_EVERY = 60.0  # seconds
MILLISECOND = 1_000
REFUSED = {
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - the client names its own errors so
    KafkaError._SSL,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,
}
HINT = "Use another group, for which the depot knows no offsets and `start` counts; messages that it has come again."
Progress = Callable[[KafkaCounts], None]


class KafkaBridge:
    """Copies messages from the topics of a broker to a depot until it is stopped, at the end, or fails."""

    def __init__(
        self, settings: Settings, progress: Progress = lambda counts: None, *, until_end: bool = False
    ) -> None:
        """Read the settings; with `until_end`, end when every partition of this worker was read.

        Raises SettingsError.
        """
        self._settings, self._kafka, self._progress, self._until_end = settings, settings.kafka, progress, until_end
        if not self._kafka.topics:
            raise SettingsError("there are no topics to read", "Set topics in [kafka], or use --topic NAME.")
        require_valid(self._kafka)
        self._start = Start(self._kafka.start)
        self._begun = time.monotonic()
        self._counts = KafkaCounts()
        self._lines = Lines(self._counts, self._begun)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._failed: BaseException | None = None
        self._stopped = self._assigned = False
        self._identified_at = self._begun
        options = _options(settings) | {"error_cb": self._on_error}
        self._consumer = Consumer(options, logger=LOG)
        self._admin = AdminClient(_connection(self._kafka), logger=LOG)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Leave the group."""
        self._consumer.close()

    def stop(self) -> None:
        """Ask for the end: what was received is committed first. Signal handlers may call it."""
        self._stopped = True

    def run(self, seconds: float | None = None) -> KafkaSummary:
        """Run until stopped, at the end, or for some seconds, and return the figures.

        Raises BrokerRefused, OffsetsLost, and the producer's error for a message that is not committed.
        """
        until = None if seconds is None else self._begun + seconds
        kafka, depot = self._kafka, self._settings.depot
        self._lines.started(kafka.brokers, depot, kafka.topics)
        self._consumer.subscribe(kafka.topics, on_assign=self._on_assign, on_revoke=self._on_revoke)
        error: BaseException | None = None
        try:
            while not (self._stopped or self._is_at_end() or (until is not None and time.monotonic() >= until)):
                self._turn()
            for one in list(self._partitions.values()):
                self._settle(one)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._lines.ended(self._seconds(), error)
        return KafkaSummary(kafka.brokers, kafka.group, depot, **asdict(self._counts), seconds=self._seconds())

    # The loop.

    def _is_at_end(self) -> bool:
        return self._until_end and self._assigned and all(one.is_at_end for one in self._partitions.values())

    def _turn(self) -> None:
        """Receive messages, send them, and note what is committed."""
        self._take()
        for one in list(self._partitions.values()):
            if one.held or one.is_settled:
                self._send(one)
        self._progress(self._counts)
        now = time.monotonic()
        self._lines.tick(now)
        if now - self._identified_at >= IDENTITY_EVERY:
            self._identified_at = now
            for topic in {topic for topic, _ in self._partitions}:
                self._require_same(topic)

    def _take(self) -> None:
        """Hold messages until there are enough, or the first one has lingered. Raises BrokerRefused, OffsetsLost."""
        limits, until = self._settings.producer, time.monotonic() + TICK
        rows = size = 0
        while rows < limits.batch_rows and size < limits.batch_bytes:
            message: Any = self._consumer.poll(max(until - time.monotonic(), 0))
            if self._failed is not None:
                raise self._failed
            if message is None:
                if time.monotonic() >= until:
                    return
                continue
            if message.error():
                self._on_event(message)
                continue
            self._partitions[message.topic(), message.partition()].held.append(message)
            if not rows:
                until = time.monotonic() + limits.linger_ms / MILLISECOND
            rows, size = rows + 1, size + len(message)

    def _send(self, one: Partition) -> None:
        """Send what a partition holds, and read it again from the depot's offset if another worker was faster."""
        try:
            one.send(self._counts)
        # guard: kafka-zombie
        except ProducerFenced:
            self._lines.fenced(f"{one.topic}/{one.number}")
            one.close()
            again = self._open(one.topic, one.number)
            self._consumer.seek(TopicPartition(one.topic, one.number, again.begun))
            return
        if one.fault:
            self._lines.invalid(one.topic, one.fault, time.monotonic())
        self._store(one)

    def _settle(self, one: Partition) -> None:
        one.held.clear()
        with suppress(ProducerFenced):
            one.settle(self._counts)
            self._store(one)

    def _store(self, one: Partition) -> None:
        """Tell Kafka the offset that the depot has; it is only for tools that show the lag."""
        with suppress(KafkaException):
            self._consumer.store_offsets(offsets=[TopicPartition(one.topic, one.number, one.reached)])

    # Partitions.

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        try:
            for topic in {one.topic for one in assigned}:
                self._require_same(topic)
            for one in assigned:
                one.offset = self._open(one.topic, one.partition).begun
            consumer.assign(assigned)
            self._assigned = True
            self._counts.partitions = len(self._partitions)
            self._lines.assigned(len(assigned))
        except BaseException as error:  # noqa: BLE001 - the loop raises it: the client would lose it
            self._failed = _refused(self._kafka, error)

    def _on_revoke(self, _: Consumer, revoked: list[TopicPartition]) -> None:
        """Wait for what is in flight, and forget what is held: the next worker reads it."""
        for one in revoked:
            partition = self._partitions.pop((one.topic, one.partition), None)
            if partition is None:
                continue
            try:
                self._settle(partition)
            except Exception as error:  # noqa: BLE001 - the loop raises it
                self._failed = error
            partition.close()
        self._counts.partitions = len(self._partitions)

    def _open(self, topic: str, number: int) -> Partition:
        """Open a partition at the offset of the depot. Raises OffsetsLost."""
        found = Partition(self._settings, topic, number)
        self._partitions[topic, number] = found
        place = TopicPartition(topic, number)
        low, high = self._consumer.get_watermark_offsets(place, ANSWER)
        if found.next is None:
            found.begin(self._first(place, low, high), low)
        # guard: kafka-offsets-lost
        elif not low <= found.next <= high:
            found.next = found.done = self._beyond(place, found.next, low, high)
        found.is_at_end = found.next == high
        return found

    def _first(self, place: TopicPartition, low: int, high: int) -> int:
        """Return where a partition begins that the depot does not know."""
        if self._start.milliseconds is None:
            return self._start.offset(place.topic, place.partition, low, high)
        asked = TopicPartition(place.topic, place.partition, self._start.milliseconds)
        offset = self._consumer.offsets_for_times([asked], ANSWER)[0].offset
        return high if offset < 0 else int(offset)

    def _beyond(self, place: TopicPartition, reached: int, low: int, high: int) -> int:
        """Return the group's offset if what the broker has removed since was read or given up. Raises OffsetsLost."""
        committed = self._consumer.committed([place], ANSWER)[0].offset
        if reached < low <= committed <= high:
            return int(committed)
        name = f"{place.topic}/{place.partition}"
        if reached > high:
            raise OffsetsLost(
                f"{name} ends at offset {high:,}, but the depot has it up to {reached:,}: the topic was made again, "
                "or the broker lost messages",
                HINT,
            )
        raise OffsetsLost(
            f"{name} begins at offset {low:,}, but the depot has it only up to {reached:,}: the broker has removed "
            "messages that were not read",
            f"To go on without them: kafka-consumer-groups --group {self._kafka.group} --topic {place.topic} "
            "--reset-offsets --to-earliest --execute.",
        )

    def _require_same(self, topic: str) -> None:
        """Compare a topic's identity with the one in the depot, or record it. Raises OffsetsLost."""
        described = self._admin.describe_topics(TopicCollection([topic]))[topic].result(ANSWER)
        identity = described.topic_id.get_most_significant_bits() ^ described.topic_id.get_least_significant_bits()
        with producer_of(self._settings, topic) as producer:
            known = producer.position().mark
            # guard: kafka-topic-identity
            if known is not None and known != identity:
                raise OffsetsLost(f"topic {topic!r} was deleted and made again since the depot read it", HINT)
            if known is None:
                record(producer, identity)

    # Events.

    def _on_event(self, message: Any) -> None:
        """Note the end of a partition. Raises BrokerRefused, OffsetsLost."""
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            one = self._partitions[message.topic(), message.partition()]
            one.is_at_end, one.end = True, message.offset()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise OffsetsLost(f"{message.topic()}/{message.partition()}: {error.str()}", HINT)
        else:
            self._on_error(error)
            if self._failed is not None:
                raise self._failed

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSED or error.fatal():
            self._failed = self._failed or _refused(self._kafka, KafkaException(error))
        else:
            self._lines.trouble(self._kafka.brokers, error.str(), time.monotonic())

    def _seconds(self) -> float:
        return round(time.monotonic() - self._begun, 3)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far the depot is behind a partition; `offset` is None if the depot does not know it."""

    topic: str
    partition: int
    offset: int | None
    end: int
    lag: int


def consumer_lag(settings: Settings) -> tuple[PartitionLag, ...]:
    """Compare the depot with the ends of its partitions.

    Raises BrokerRefused, MissingExtra, TableUnreadable.
    """
    kafka = settings.kafka
    try:
        log = open_table(absolute(settings.depot), "depot")
    except TableMissing:
        return ()
    consumer = Consumer(_options(settings), logger=LOG)
    try:
        return tuple(_lag(kafka, log, consumer, place) for place in _places(kafka, consumer))
    except KafkaException as error:
        raise _refused(kafka, error) from error
    finally:
        consumer.close()


def _lag(kafka: KafkaPart, log: Any, consumer: Consumer, place: TopicPartition) -> PartitionLag:
    """Return the lag of a partition; the group's offset tells control records, which are no messages."""
    low, end = consumer.get_watermark_offsets(place, ANSWER)
    name = producer_id(kafka, f"{place.topic}/{place.partition}")
    offset = log.transaction_version(marks(name))
    committed = consumer.committed([place], ANSWER)[0].offset
    reached = low if offset is None else max(offset, committed)
    return PartitionLag(place.topic, place.partition, offset, end, max(end - reached, 0))


def _places(kafka: KafkaPart, consumer: Consumer) -> Sequence[TopicPartition]:
    known = consumer.list_topics(timeout=ANSWER).topics
    topics = [known[topic] for topic in kafka.topics if topic in known]
    return [TopicPartition(topic.topic, number) for topic in topics for number in sorted(topic.partitions)]


def _options(settings: Settings) -> dict[str, Any]:
    """Return the options of a consumer that reads only what is committed, and never chooses an offset itself."""
    patience = 2 * settings.producer.delivery_timeout // MILLISECOND + 60 * MILLISECOND
    ours = {
        "group.id": settings.kafka.group,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "partition.assignment.strategy": "range,roundrobin",
        "max.poll.interval.ms": max(300 * MILLISECOND, patience),
        "queued.max.messages.kbytes": max(settings.producer.buffer_bytes // 1_024, 1_024),
    }
    if wrong := (ours.keys() | {"bootstrap.servers", "group.protocol"}) & settings.kafka.properties.keys():
        raise SettingsError(f"kafka.properties must not have {min(wrong)}", "The bridge sets it itself: leave it out.")
    return ours | _connection(settings.kafka)


def _connection(kafka: KafkaPart) -> dict[str, Any]:
    secret = password(kafka, "kafka")
    return {"bootstrap.servers": kafka.brokers, **kafka.properties, **({"sasl.password": secret} if secret else {})}


def _refused(kafka: KafkaPart, error: BaseException) -> BaseException:
    """Return an error of the client as one of ours."""
    if not isinstance(error, KafkaException):
        return error
    return BrokerRefused(
        f"the brokers {kafka.brokers} refuse group {kafka.group!r}: {error.args[0].str()}",
        "Check brokers, topics and properties in [kafka], and the permissions of this user.",
    )

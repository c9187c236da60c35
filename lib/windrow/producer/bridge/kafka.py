"""The Kafka bridge: a worker of a consumer group that copies its partitions to a depot.

The depot's log decides where reading a partition continues. Kafka's committed offsets follow the depot, for tools that
show the lag.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from windrow.delta.locations import absolute
from windrow.delta.table import latest_table
from windrow.errors import BrokerError, MissingExtraError, OffsetOutOfRangeError, ProducerFencedError, SettingsError
from windrow.model.durations import SECOND
from windrow.model.timestamps import microseconds, time_text
from windrow.operate.log import log
from windrow.producer.bridge.kafka_partition import Partition, producer_id, producer_of, record
from windrow.producer.bridge.kafka_records import KafkaReader
from windrow.producer.bridge.settings import password
from windrow.producer.bridge.summary import BridgeLog, KafkaStats
from windrow.producer.writer import marks
from windrow.reading.batcher_status import KafkaLag, PartitionLag
from windrow.settings.bridges import KafkaSettings
from windrow.settings.producer import BATCH_BYTES
from windrow.settings.settings import Settings
from windrow.version import VERSION

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
except ImportError as missing:
    hint = "pip install 'windrow-delta[kafka]'"
    raise MissingExtraError("a bridge from Kafka needs confluent-kafka", hint) from missing

LOG = logging.getLogger("windrow.kafka")
TICK = 0.2  # seconds, the longest wait before the clock is checked
ANSWER = 30.0  # seconds that a broker has to answer
MILLISECOND = 1_000  # microseconds in a millisecond; milliseconds in a second
BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - the client names its own errors so
END = KafkaError._PARTITION_EOF  # noqa: SLF001
GONE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
REFUSED = {
    KafkaError._AUTHENTICATION,  # noqa: SLF001
    KafkaError._SSL,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,
}
NEW_GROUP_HINT = "Use another group: it begins at `start_from`, and rereads messages that the depot already has."
Progress = Callable[[KafkaStats], None]


class KafkaBridge:
    """Copies messages from the topics of a broker to a depot until it is stopped, reaches the end, or fails."""

    def __init__(
        self, settings: Settings, progress: Progress = lambda summary: None, *, until_end: bool = False
    ) -> None:
        """Read the settings; with `until_end`, end when every partition of this worker has been read.

        Raises SettingsError.
        """
        self._settings, self._kafka, self._progress, self._until_end = settings, settings.kafka, progress, until_end
        if not self._kafka.topics:
            raise SettingsError("there are no topics to read", "Set topics in [kafka], or use --topic NAME.")
        KafkaReader(self._kafka, "", 0)  # refuses wrong columns and times
        self._start = _start(self._kafka.start_from)
        self._begun = time.monotonic()
        self._counts = KafkaStats(self._kafka.bootstrap_servers, self._kafka.group_id, settings.depot)
        self._lines = BridgeLog(self._counts, self._begun)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._failed: BaseException | None = None
        self._stopped = self._assigned = self._answered = False
        self._trouble = ""
        reach = connection(self._kafka)
        try:
            self._consumer = Consumer(_options(settings) | reach | {"error_cb": self._on_error}, logger=LOG)
            self._admin = AdminClient(reach, logger=LOG)
        except KafkaException as error:
            raise SettingsError(f"[kafka] {error.args[0].str()}", "Check kafka.properties.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Leave the group."""
        self._consumer.close()
        for partition in self._partitions.values():
            partition.close()

    def stop(self) -> None:
        """Ask for the end: messages in flight are committed first. Signal handlers may call it."""
        self._stopped = True

    def run(self, seconds: float | None = None) -> KafkaStats:
        """Run until stopped, until the end, or for some seconds, and return the figures.

        Raises BrokerError, OffsetOutOfRangeError, and the producer's error for a message that is not committed.
        """
        until = None if seconds is None else self._begun + seconds
        kafka, depot = self._kafka, self._settings.depot
        log.info("bridge started", broker=kafka.bootstrap_servers, depot=depot, topics=kafka.topics, windrow=VERSION)
        self._join()
        with self._lines.until_ended():
            try:
                while not (self._stopped or self._is_at_end() or (until is not None and time.monotonic() >= until)):
                    self._turn()
                for partition in list(self._partitions.values()):
                    self._settle(partition)
                self._measure()
            except KafkaException as raised:
                raise self._named(raised) from raised
        return replace(self._counts)  # which leaving the group no longer changes

    # The loop.

    def _is_at_end(self) -> bool:
        """Tell whether the depot has every partition up to the end that this worker saw."""
        if not self._until_end or not self._assigned:
            return False
        return all(0 <= partition.ends_at <= partition.reached for partition in self._partitions.values())

    def _turn(self) -> None:
        """Receive messages, send them, and note what is committed."""
        self._take()
        for partition in list(self._partitions.values()):
            if partition.buffered or partition.is_settled:
                self._send(partition)
        self._measure()
        self._progress(self._counts)
        self._lines.tick(time.monotonic())

    def _take(self) -> None:
        """Buffer messages until there are enough, or the first one has lingered.

        Raises BrokerError, OffsetOutOfRangeError.
        """
        limits, until = self._settings.producer, time.monotonic() + TICK
        rows = size = 0
        while rows < limits.max_commit_rows and size < BATCH_BYTES:
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
            partition = self._partitions[message.topic(), message.partition()]
            if not partition.is_compared and self._is_last(partition, message):
                continue
            partition.buffer(message)
            if not rows:
                until = time.monotonic() + limits.linger / SECOND
            rows, size = rows + 1, size + len(message)

    def _send(self, partition: Partition) -> None:
        """Send a partition's buffered messages; if another worker was faster, read again from the depot's offset."""
        try:
            fault = partition.send(self._counts)
        except ProducerFencedError:
            log.warning("another worker was faster", partition=partition.name)
            self._reopen(partition)
            return
        if fault:
            self._lines.invalid(partition.topic, fault, time.monotonic())
        self._store(partition)

    def _settle(self, partition: Partition) -> None:
        """Wait for messages in flight, and drop the buffered ones: the next worker reads them."""
        partition.buffered.clear()
        with suppress(ProducerFencedError):
            partition.settle(self._counts)
            self._store(partition)

    def _store(self, partition: Partition) -> None:
        with suppress(KafkaException):
            self._consumer.store_offsets(offsets=[TopicPartition(partition.topic, partition.number, partition.reached)])

    def _measure(self) -> None:
        """Note how far the depot is behind the broker."""
        for partition in self._partitions.values():
            _, end = self._consumer.get_watermark_offsets(
                TopicPartition(partition.topic, partition.number), cached=True
            )
            partition.end = max(partition.end, end)
        self._counts.lag = sum(partition.lag for partition in self._partitions.values())

    # Partitions.

    def _join(self) -> None:
        self._consumer.subscribe(self._kafka.topics, on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        try:
            for topic in {place.topic for place in assigned}:
                self._require_same(topic)
            for place in assigned:
                place.offset = self._open(place.topic, place.partition).position
            consumer.assign(assigned)
            self._assigned = self._answered = True
            self._counts.partitions = len(self._partitions)
            log.info("partitions assigned", partitions=len(assigned))
        except BaseException as error:  # noqa: BLE001 - the loop raises it: the client would lose it
            self._failed = self._failed or self._named(error)

    def _on_revoke(self, _: Consumer, revoked: list[TopicPartition]) -> None:
        self._assigned = False  # without partitions the worker is not at the end, either
        for place in revoked:
            partition = self._partitions.pop((place.topic, place.partition), None)
            if partition is None:
                continue
            try:
                self._settle(partition)
            except BaseException as error:  # noqa: BLE001 - the loop raises it
                self._failed = self._failed or error
            partition.close()
        self._counts.partitions = len(self._partitions)

    def _open(self, topic: str, number: int) -> Partition:
        """Open a partition at the offset of the depot. Raises OffsetOutOfRangeError."""
        partition = self._partitions[topic, number] = Partition(self._settings, topic, number)
        place = TopicPartition(topic, number)
        low, partition.end = self._consumer.get_watermark_offsets(place, ANSWER)
        if not partition.is_known:
            partition.seek(self._first(place, low, partition.end))
        # guard: kafka-offsets-lost
        elif not low <= partition.next <= partition.end:
            self._require_read(partition, low)
            partition.seek(low)
        partition.resume(low)
        return partition

    def _reopen(self, partition: Partition) -> None:
        """Read a partition from the depot's offset again. Raises OffsetOutOfRangeError."""
        self._settle(partition)
        partition.close()
        again = self._open(partition.topic, partition.number)
        self._consumer.seek(TopicPartition(partition.topic, partition.number, again.position))

    def _first(self, place: TopicPartition, low: int, high: int) -> int:
        """Return where to start a partition that the depot does not know."""
        if isinstance(self._start, str):
            return high if self._start == "latest" else low
        place.offset = self._start
        offset: int = self._consumer.offsets_for_times([place], ANSWER)[0].offset
        return high if offset < 0 else offset

    def _require_read(self, partition: Partition, low: int) -> None:
        """Require that this group has read what the broker no longer has, or that somebody gave it up.

        Offsets read may belong to control records, or to messages of aborted transactions. Raises
        OffsetOutOfRangeError.
        """
        if partition.next > partition.end:
            raise OffsetOutOfRangeError(
                f"{partition.name} ends at offset {partition.end:,}, but the depot has it up to {partition.next:,}: "
                "the topic was recreated, or the broker lost messages",
                NEW_GROUP_HINT,
            )
        committed = self._consumer.committed([TopicPartition(partition.topic, partition.number)], ANSWER)[0].offset
        if committed < low:
            raise OffsetOutOfRangeError(
                f"{partition.name} begins at offset {low:,}, but the depot has it only up to {partition.next:,}: "
                "the broker has removed messages that were not read",
                f"To continue without them: kafka-consumer-groups --group {self._kafka.group_id} "
                f"--topic {partition.topic} --reset-offsets --to-earliest --execute.",
            )
        log.warning("offsets removed", partition=partition.name, depot_has_up_to=partition.next, begins_at=low)

    def _is_last(self, partition: Partition, message: Any) -> bool:
        """Tell whether the first message of a partition, if any, is the last one in the depot, which is read again.

        Raises OffsetOutOfRangeError if its offset has a different message, or none although the topic is not compacted.
        """
        partition.is_compared, last = True, partition.next - 1
        gone = message is None or message.offset() > last
        if gone and self._may_be_compacted(partition.topic):
            log.warning("last message gone", partition=partition.name, offset=last)
            return False
        # guard: kafka-last-message
        if gone or not partition.is_last(message):
            raise OffsetOutOfRangeError(
                f"{partition.name} has {'no' if gone else 'another'} message at offset {last:,}, "
                "where the depot has one: the broker lost messages and reused their offsets",
                NEW_GROUP_HINT,
            )
        return True

    def _may_be_compacted(self, topic: str) -> bool:
        """Tell whether compaction may remove messages of a topic, which is assumed if this user may not ask."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            settings = self._admin.describe_configs([resource], request_timeout=ANSWER)[resource].result()
            return "compact" in settings["cleanup.policy"].value
        except (KafkaException, KeyError):
            return True

    def _require_same(self, topic: str) -> None:
        """Compare a topic's identity with the one in the depot, or record it. Raises OffsetOutOfRangeError."""
        described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER)[topic].result()
        identity = described.topic_id.get_most_significant_bits() ^ described.topic_id.get_least_significant_bits()
        with producer_of(self._settings, topic) as producer:
            known = producer.position().mark
            # guard: kafka-topic-identity
            if known is not None and known != identity:
                raise OffsetOutOfRangeError(
                    f"topic {topic!r} was deleted and recreated since the depot read it", NEW_GROUP_HINT
                )
            if known is None:
                record(producer, identity)

    # Events.

    def _on_event(self, message: Any) -> None:
        """Note the end of a partition. Raises BrokerError, OffsetOutOfRangeError."""
        error = message.error()
        if error.code() == END:
            partition = self._partitions[message.topic(), message.partition()]
            if not partition.is_compared:
                self._is_last(partition, None)
            partition.ends_at = message.offset()
        elif error.code() == GONE:
            self._join()  # the client cannot seek in a partition without an offset
        else:
            self._on_error(error)
            if self._failed is not None:
                raise self._failed

    def _on_error(self, error: KafkaError) -> None:
        """Note an error of the client. The client reconnects by itself, but at the start the address may be wrong."""
        never = error.code() == BROKERS_DOWN and not self._answered
        if never or error.code() in REFUSED or error.fatal():
            self._failed = self._failed or self._named(KafkaException(error))
        else:
            self._trouble = error.str()
            self._lines.warn("no connection", time.monotonic(), broker=self._kafka.bootstrap_servers, error=error.str())

    def _named(self, error: BaseException) -> BaseException:
        return translate_kafka_error(error, self._kafka, self._trouble) if isinstance(error, KafkaException) else error


def translate_kafka_error(error: KafkaException, kafka: KafkaSettings, trouble: str = "") -> BrokerError:
    """Return an error of the client as one of ours; `trouble` is what it said before."""
    known, brokers = error.args[0], kafka.bootstrap_servers
    if known.code() in REFUSED:
        return BrokerError(
            f"the broker {brokers} refuses group {kafka.group_id!r}: {known.str()}",
            "Check bootstrap_servers, topics, properties and password in [kafka], and the permissions of this user.",
        )
    return BrokerError(
        f"no broker answers at {brokers}: {trouble or known.str()}",
        "Check bootstrap_servers in [kafka], the network, and security.protocol in [kafka.properties].",
    )


def _start(text: str) -> str | int:
    """Return `earliest`, `latest`, or a time in milliseconds. Raises SettingsError."""
    if text in {"earliest", "latest"}:
        return text
    form, _, value = text.partition(":")
    if form != "timestamp":
        raise SettingsError(f"kafka.start_from = {text!r} is invalid", "Use earliest, latest or timestamp:ISO.")
    return microseconds(value, "kafka.start_from = timestamp:") // MILLISECOND


def _options(settings: Settings) -> dict[str, Any]:
    """Return the options of a consumer that reads only committed messages and never chooses an offset itself."""
    patience = 2 * settings.producer_options.delivery_timeout // MILLISECOND + 60 * MILLISECOND
    ours = {
        "group.id": settings.kafka.group_id,
        # guard: kafka-read-committed
        "isolation.level": "read_committed",
        # guard: kafka-offset-never-chosen
        "auto.offset.reset": "error",
        "enable.auto.commit": True,  # commits what `_store` stores, and nothing else
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "partition.assignment.strategy": "range,roundrobin",
        "max.poll.interval.ms": max(300 * MILLISECOND, patience),
        "queued.max.messages.kbytes": max(settings.producer_options.max_buffer_bytes // 1_024, 1_024),
    }
    if wrong := (ours.keys() | {"bootstrap.servers", "group.protocol"}) & settings.kafka.properties.keys():
        raise SettingsError(f"kafka.properties must not have {min(wrong)}", "The bridge sets it itself: leave it out.")
    return ours


def connection(kafka: KafkaSettings) -> dict[str, Any]:
    """Return the properties with which a client reaches the brokers. Raises SettingsError."""
    secret = password(kafka, "kafka")
    properties = {name: value.get_secret_value() for name, value in kafka.properties.items()}
    ours = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "log_level": 2,
    }  # `_on_error` reports what is worse than a notice
    return {**ours, **properties, **({"sasl.password": secret} if secret else {})}


def kafka_lag(settings: Settings, now: int) -> KafkaLag:
    """Say how far the depot is behind the topics: ask the broker where they end, at wall time `now` (microseconds).

    For a partition that the depot does not know, everything that the broker has counts. Raises SettingsError without
    topics, BrokerError, TableMissingError.
    """
    kafka, depot = settings.kafka, latest_table(absolute(settings.depot), "depot")
    if not kafka.topics:
        raise SettingsError("there are no topics to query", "Set topics in [kafka].")
    try:
        offsets = _offsets(kafka)
    except KafkaException as error:
        raise translate_kafka_error(error, kafka) from error
    partitions = []
    for (topic, number), (start, end) in sorted(offsets.items()):
        reached = depot.transaction_version(marks(producer_id(kafka, f"{topic}/{number}")))
        lag = max(end - (start if reached is None else reached), 0)
        partitions.append(PartitionLag(topic, number, reached, end, lag))
    total = sum(partition.lag for partition in partitions)
    return KafkaLag(kafka.bootstrap_servers, kafka.group_id, time_text(now), total, tuple(partitions))


def _offsets(kafka: KafkaSettings) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first offset and the end of each partition, without joining the group. Raises KafkaException."""
    options = {"group.id": kafka.group_id, "isolation.level": "read_committed"}
    with closing(Consumer(connection(kafka) | options, logger=LOG)) as consumer:
        places = [
            TopicPartition(topic, number)
            for topic, described in consumer.list_topics(timeout=ANSWER).topics.items()
            if any(re.match(pattern, topic) if pattern[:1] == "^" else pattern == topic for pattern in kafka.topics)
            for number in described.partitions
        ]
        return {(at.topic, at.partition): consumer.get_watermark_offsets(at, ANSWER) for at in places}

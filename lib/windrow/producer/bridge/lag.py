"""How far a depot is behind the topics of a broker: the broker says where they end, the depot's log what it has."""

from __future__ import annotations

import re
from contextlib import closing

from confluent_kafka import Consumer, KafkaException, TopicPartition

from windrow.delta.locations import absolute
from windrow.delta.table import latest_table
from windrow.errors import SettingsError
from windrow.model.timestamps import time_text
from windrow.producer.bridge.kafka import ANSWER, LOG, connection, refusal
from windrow.producer.bridge.partition import producer_id
from windrow.producer.writer import marks
from windrow.reading.figures import KafkaLag, PartitionLag
from windrow.settings.settings import KafkaPart, Settings


def kafka_lag(settings: Settings, now: int) -> KafkaLag:
    """Ask the broker where the topics end at wall time `now` (microseconds), and compare that with the depot.

    Of a partition that the depot does not know, everything counts that the broker has. Raises SettingsError without
    topics, BrokerRefused, TableMissing.
    """
    kafka, depot = settings.kafka, latest_table(absolute(settings.depot), "depot")
    if not kafka.topics:
        raise SettingsError("there are no topics to ask for", "Set topics in [kafka].")
    try:
        offsets = _offsets(kafka)
    except KafkaException as error:
        raise refusal(error, kafka) from error
    partitions = []
    for (topic, number), (begin, end) in sorted(offsets.items()):
        reached = depot.transaction_version(marks(producer_id(kafka, f"{topic}/{number}")))
        lag = max(end - (begin if reached is None else reached), 0)
        partitions.append(PartitionLag(topic, number, reached, end, lag))
    total = sum(one.lag for one in partitions)
    return KafkaLag(kafka.brokers, kafka.group, time_text(now), total, tuple(partitions))


def _offsets(kafka: KafkaPart) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first offset and the end of each partition, without joining the group. Raises KafkaException."""
    options = {"group.id": kafka.group, "isolation.level": "read_committed"}
    with closing(Consumer(connection(kafka) | options, logger=LOG)) as consumer:
        places = [
            TopicPartition(topic, number)
            for topic, described in consumer.list_topics(timeout=ANSWER).topics.items()
            if any(re.match(one, topic) if one[:1] == "^" else one == topic for one in kafka.topics)
            for number in described.partitions
        ]
        return {(at.topic, at.partition): consumer.get_watermark_offsets(at, ANSWER) for at in places}

"""Turn MQTT messages into messages of the depot, valid or invalid."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import NamedTuple

from windrow.producer.bridge.mqtt_topics import Topics
from windrow.producer.bridge.times import InvalidEventTime, Time
from windrow.producer.row import MessageRow

BASE64 = "data:;base64,"


class ParsedMessage(NamedTuple):
    """A message as a row of the depot.

    A message with a `fault` is invalid: its `type` or `event_time` is NULL in the depot, so that batching rejects it.
    """

    row: MessageRow
    fault: str = ""


@dataclass(frozen=True, slots=True)
class MqttReader:
    """Reads topics and payloads; `source` is the default source, `binary` says that payloads are bytes."""

    topics: Topics
    time: Time
    source: str
    binary: bool
    most_bytes: int

    def read(self, topic: str, payload: bytes) -> ParsedMessage:
        """Read a message that has just arrived."""
        captured = self.topics.match(topic)
        kept, is_text = self._keep_payload(payload)
        now = time.time_ns() // 1_000
        if captured is None:
            return ParsedMessage(
                MessageRow(self.source, topic, None, None, now, None, kept), "its topic matches no pattern"
            )
        row = self._row(captured, topic, kept, now)
        if not is_text:
            return ParsedMessage(row, "its payload is not UTF-8 text")
        if row.byte_count > self.most_bytes:
            return ParsedMessage(row, "it is larger than max_message_bytes")
        try:
            event_time = self.time(payload)
        except InvalidEventTime as unread:
            return ParsedMessage(row, str(unread))
        return ParsedMessage(row._replace(event_time=now if event_time is None else event_time))

    def _row(self, captured: dict[str, str], topic: str, kept: str | bytes, now: int) -> MessageRow:
        """Return a row with defaults for what its topic lacks: the source or topic as key, the topic as type."""
        key = captured.get("key", captured.get("source", topic))
        return MessageRow(captured.get("source", self.source), key, captured.get("type", topic), None, now, None, kept)

    def _keep_payload(self, payload: bytes) -> tuple[str | bytes, bool]:
        """Return the payload in the depot's type, and whether it is unchanged."""
        if self.binary:
            return payload, True
        try:
            return payload.decode(), True
        except UnicodeDecodeError:
            return BASE64 + base64.b64encode(payload).decode("ascii"), False

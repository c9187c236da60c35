"""Turn MQTT messages into messages of the depot, valid or invalid."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace

from windrow.producer.bridge.mqtt_topics import Columns, Topics
from windrow.producer.bridge.times import Time, TimeUnread
from windrow.producer.payloads import size
from windrow.producer.row import ROW_BYTES

BASE64 = "data:;base64,"


@dataclass(frozen=True, slots=True)
class Reading:
    """A message in the columns of a depot; `event_time` (microseconds) None means the time of arrival.

    A message with a `fault` is invalid: its `type` or `event_time` is NULL in the depot, so that batching rejects it.
    """

    source: str
    key: str
    type: str | None
    event_time: int | None
    payload: str | bytes
    fault: str = ""

    @property
    def byte_count(self) -> int:
        """Return how many bytes of the producer's buffer it takes."""
        return ROW_BYTES + sum(map(size, (self.source, self.key, self.type, self.payload)))


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads topics and payloads; `source` is the default source, `binary` says that the depot holds bytes."""

    topics: Topics
    time: Time
    source: str
    binary: bool
    most_bytes: int

    def read(self, topic: str, payload: bytes) -> Reading:
        """Read a message."""
        found = self.topics.match(topic)
        kept, is_text = self._kept(payload)
        if found is None:
            return Reading(self.source, topic, None, None, kept, "its topic matches no pattern")
        whole = self._whole(found, topic, kept)
        if not is_text:
            return replace(whole, fault="its payload is not UTF-8 text")
        if whole.byte_count > self.most_bytes:
            return replace(whole, fault="it is larger than max_message_bytes")
        try:
            return replace(whole, event_time=self.time(payload))
        except TimeUnread as unread:
            return replace(whole, fault=str(unread))

    def _whole(self, found: Columns, topic: str, kept: str | bytes) -> Reading:
        """Return a message with defaults for what its topic lacks: the source or topic as key, the topic as type."""
        key = next(one for one in (found.key, found.source, topic) if one is not None)
        source = self.source if found.source is None else found.source
        return Reading(source, key, topic if found.type is None else found.type, None, kept)

    def _kept(self, payload: bytes) -> tuple[str | bytes, bool]:
        """Return the payload in the depot's type, and whether it is unchanged."""
        if self.binary:
            return payload, True
        try:
            return payload.decode(), True
        except UnicodeDecodeError:
            return BASE64 + base64.b64encode(payload).decode("ascii"), False

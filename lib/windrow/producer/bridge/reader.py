"""The reader: what comes over a topic as a message of the depot, or as what is none."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace

from windrow.producer.bridge.times import Time, TimeUnread
from windrow.producer.bridge.topics import Columns, Topics
from windrow.producer.row import ROW_BYTES

BASE64 = "data:;base64,"


@dataclass(frozen=True, slots=True)
class Reading:
    """A message in the columns of a depot; `event_time` None is the time of arrival, unless there is a `fault`.

    With a fault it is no message: `type` or `event_time` is then NULL in the depot, so that batching rejects it.
    """

    source: str
    key: str
    type: str | None
    event_time: int | None
    payload: str | bytes
    fault: str = ""

    @property
    def byte_count(self) -> int:
        """Return what it takes of a producer's buffer."""
        texts = (self.source, self.key, self.type or "", self.payload)
        return ROW_BYTES + sum(len(one if isinstance(one, bytes) else one.encode()) for one in texts)


@dataclass(frozen=True, slots=True)
class Reader:
    """How topics and payloads are read; `source` where a topic names none, `binary` where the depot holds bytes."""

    topics: Topics
    time: Time
    source: str
    binary: bool
    most_bytes: int

    def read(self, topic: str, payload: bytes) -> Reading:
        """Return what a message is."""
        found = self.topics.match(topic)
        kept, is_text = self._kept(payload)
        if found is None:
            return Reading(self.source, topic, None, None, kept, "its topic matches no pattern")
        whole = self._whole(found, topic, kept)
        if not is_text:
            return replace(whole, fault="its payload is no text")
        if whole.byte_count > self.most_bytes:
            return replace(whole, fault="it is larger than max_message_bytes")
        try:
            return replace(whole, event_time=self.time(payload))
        except TimeUnread as unread:
            return replace(whole, fault=str(unread))

    def _whole(self, found: Columns, topic: str, kept: str | bytes) -> Reading:
        """Return a message with what its topic does not say: key is the source or the topic, type the topic."""
        key = next(one for one in (found.key, found.source, topic) if one is not None)
        source = self.source if found.source is None else found.source
        return Reading(source, key, topic if found.type is None else found.type, None, kept)

    def _kept(self, payload: bytes) -> tuple[str | bytes, bool]:
        """Return the payload as the depot takes it, and whether it is as it came."""
        if self.binary:
            return payload, True
        try:
            return payload.decode(), True
        except UnicodeDecodeError:
            return BASE64 + base64.b64encode(payload).decode("ascii"), False

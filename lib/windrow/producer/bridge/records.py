"""Turn the messages of a Kafka partition into messages of the depot, valid or invalid."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from windrow.errors import SettingsError
from windrow.producer.bridge import times
from windrow.producer.bridge.times import TimeUnread
from windrow.producer.lines import Fields, Reader, Unfit
from windrow.settings.settings import KafkaPart

BASE64 = "data:;base64,"
DEFAULTS = ("source=kafka.source", "key=kafka.key", "type=kafka.topic", "payload=*")
OWN = ("event_time=kafka.time", "sequence=kafka.sequence", "received_at=kafka.received_at")
MAPPED = ("source", "key", "type", "payload")
METADATA, HEADER = "kafka.", "kafka.headers."
NAMES = ("kafka.key", "kafka.topic", "kafka.partition", "kafka.offset", "kafka.timestamp")


class Record(Protocol):
    """A message of Kafka, as its client returns it."""

    def topic(self) -> str: ...  # noqa: D102 - the names are Kafka's
    def partition(self) -> int: ...  # noqa: D102
    def offset(self) -> int: ...  # noqa: D102
    def key(self) -> bytes | None: ...  # noqa: D102
    def value(self) -> bytes | None: ...  # noqa: D102
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...  # noqa: D102
    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102


def mapped(kafka: KafkaPart) -> Fields:
    """Return what fills the columns: fields of a JSON value, or `kafka.key` and the like. Raises SettingsError."""
    fields = Fields.of([*DEFAULTS, *kafka.columns, *OWN])
    for column in kafka.columns:
        name, _, field = column.partition("=")
        known = not field.startswith(METADATA) or field in NAMES or field.startswith(HEADER)
        if name not in MAPPED or not known:
            raise SettingsError(
                f"column {column!r} of [kafka] is not valid",
                f"The columns are {', '.join(MAPPED)}, and Kafka's names {', '.join(NAMES)} and {HEADER}NAME. "
                "event_time has a setting of its own.",
            )
    return fields


def require_valid(kafka: KafkaPart) -> None:
    """Raise SettingsError if columns or event_time are not valid."""
    mapped(kafka)
    _time_reader(kafka.event_time)


class Records(Reader[Record]):
    """Reads the messages of one partition, which is the source unless a column says otherwise."""

    def __init__(self, kafka: KafkaPart, topic: str, partition: int, most_bytes: int, payload: pa.DataType) -> None:
        """Raises SettingsError."""
        super().__init__(mapped(kafka), f"{topic}/{partition}", most_bytes, payload)
        named = {field for field in self._known if field.startswith(METADATA)}
        self._headers = [field.removeprefix(HEADER) for field in named if field.startswith(HEADER)]
        self._reads_json = bool(self._known - named - {"*"})
        self._is_text = payload == pa.string()
        self._time = _time_reader(kafka.event_time)

    def _object(self, given: Record) -> tuple[dict[str, Any], str]:
        value, fault = given.value() or b"", ""
        found: dict[str, Any] = {
            "kafka.topic": given.topic(),
            "kafka.partition": str(given.partition()),
            "kafka.offset": str(given.offset()),
            "kafka.timestamp": str(given.timestamp()[1]),
            "kafka.sequence": given.offset(),
        }
        try:
            found["kafka.key"] = _text("key", given.key())
            headers = dict(given.headers() or ()) if self._headers else {}
            for name in self._headers:
                found[HEADER + name] = _text(f"header {name}", headers.get(name))
            if self._is_text:
                _text("value", value)
            if self._reads_json:
                fields, fault = self._fields_in(value)
                found = fields | found
            found["kafka.time"] = self._time(given)
        except (Unfit, TimeUnread) as unfit:
            return found, str(unfit)
        too_large = len(value) > self._most_bytes
        return found, f"it has more than {self._most_bytes:,} bytes" if too_large else fault

    def _whole(self, given: Record) -> str | bytes | None:
        value = given.value()
        return value.decode(errors="replace") if self._is_text and value is not None else value

    def _refused(self, given: Record, reason: str) -> dict[str, Any]:
        headers = {name: _kept(content) for name, content in given.headers() or ()}
        place = {"topic": given.topic(), "partition": given.partition(), "offset": given.offset()}
        content = {"key": _kept(given.key()), "headers": headers, "value": _kept(given.value())}
        return {"reason": reason, **place, "timestamp_ms": given.timestamp()[1], **content}


def _time_reader(text: str) -> Callable[[Record], int | None]:
    """Return a function that reads the event time of a message in microseconds. Raises SettingsError."""
    if text == "timestamp":
        return lambda record: record.timestamp()[1] * 1_000 if record.timestamp()[0] else None
    if text == "arrival":
        return lambda record: time.time_ns() // 1_000
    read = times.reader(text)
    return lambda record: read(record.value() or b"")


def _text(what: str, content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise Unfit(f"its {what} is not UTF-8 text") from None


def _kept(content: bytes | None) -> str | None:
    """Return text, or base64 if it is not UTF-8."""
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return BASE64 + base64.b64encode(content or b"").decode("ascii")

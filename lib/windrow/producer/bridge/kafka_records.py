"""Turn the messages of a Kafka partition into messages of the depot, valid or invalid."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from windrow.errors import SettingsError
from windrow.producer.bridge import times
from windrow.producer.bridge.reader import BASE64
from windrow.producer.bridge.times import InvalidEventTime
from windrow.producer.lines import TEXTS, TEXTUAL, Fields, LineReader
from windrow.settings.bridges import KafkaSettings

DEFAULT_COLUMNS = (
    *("source=kafka.source", "key=kafka.key", "type=kafka.topic", "payload=*"),
    *("event_time=kafka.time", "received_at=kafka.stamp", "sequence=kafka.sequence"),
)
METADATA, HEADER = "kafka.", "kafka.headers."
NAMES = ("kafka.key", "kafka.topic", "kafka.partition", "kafka.offset", "kafka.timestamp")


def resolve_field_map(kafka: KafkaSettings) -> Fields:
    """Return what fills the columns: fields of a JSON value, or `kafka.key` and the like. Raises SettingsError."""
    for column in kafka.field_map:
        name, _, field = column.partition("=")
        if name not in TEXTS or (field.startswith(METADATA) and field not in NAMES and not field.startswith(HEADER)):
            raise SettingsError(
                f"field_map {column!r} of [kafka] is not valid",
                f"The columns are {', '.join(TEXTS)}, and Kafka's names {', '.join(NAMES)} and {HEADER}NAME. "
                "event_time has a setting of its own.",
            )
    return Fields.of([*DEFAULT_COLUMNS, *kafka.field_map])


class KafkaReader(LineReader):
    """Reads the messages of one partition, which is the source unless a column says otherwise."""

    def __init__(self, kafka: KafkaSettings, source: str, most_bytes: int, payload: pa.DataType = TEXTUAL) -> None:
        """Raise SettingsError if columns or event_time are not valid."""
        super().__init__(resolve_field_map(kafka), source, most_bytes, payload)
        named = {field for field in self._known if field.startswith(METADATA)}
        self._headers = [field for field in named if field.startswith(HEADER)]
        self._reads_json = bool(self._known - named - {"*"})
        self._is_text = payload == TEXTUAL
        self._time = times.reader(kafka.event_time)

    def _object(self, line: Any) -> tuple[dict[str, Any], str]:
        value, (kind, stamp) = line.value() or b"", line.timestamp()
        fields, fault = super()._object(value) if self._reads_json else ({}, "")
        fields |= {
            "kafka.topic": line.topic(),
            "kafka.partition": str(line.partition()),
            "kafka.offset": str(line.offset()),
            "kafka.timestamp": str(stamp),
            "kafka.sequence": line.offset(),
            "kafka.stamp": stamp * 1_000 if kind else None,
        }
        texts = {"kafka.key": line.key()}
        if self._headers:
            headers = dict(line.headers() or ())
            texts |= {name: headers.get(name.removeprefix(HEADER)) for name in self._headers}
        if self._is_text:
            texts["kafka.value"] = value
        for name, content in texts.items():
            try:
                fields[name] = None if content is None else content.decode()
            except UnicodeDecodeError:
                fault = f"{name} is not UTF-8 text"
        try:
            time = self._time(value)
        except InvalidEventTime as unread:
            return fields, fault or str(unread)
        fields["kafka.time"] = fields["kafka.stamp"] if time is None else time
        too_large = len(value) > self._most_bytes
        return fields, f"it has more than {self._most_bytes:,} bytes" if too_large else fault

    def _whole(self, line: Any) -> str | bytes | None:
        value = line.value()
        return value.decode(errors="replace") if self._is_text and value is not None else value

    def _keep_fields(self, line: Any) -> dict[str, Any]:
        """Return everything, so that nothing of an invalid message is lost."""
        place = {"topic": line.topic(), "partition": line.partition(), "offset": line.offset()}
        headers = {name: _readable(content) for name, content in line.headers() or ()}
        content = {"key": _readable(line.key()), "headers": headers, "value": _readable(line.value())}
        return {**place, "timestamp_ms": line.timestamp()[1], **content}


def _readable(content: bytes | None) -> str | None:
    """Return text, or base64 if it is not UTF-8."""
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return BASE64 + base64.b64encode(content or b"").decode("ascii")

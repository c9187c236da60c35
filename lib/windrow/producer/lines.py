"""Turn JSON lines into messages; a line that is not a message becomes a row that the batcher rejects.

Lines are read one by one. Arrow could read many at once, but it reads two messages from a line with two objects and
none from an empty line, so the numbers of lines and messages would no longer match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import isinf
from typing import Any, NoReturn

import msgspec
import pyarrow as pa

from windrow.errors import SettingsError
from windrow.model import messages
from windrow.model.payload import name as name_of
from windrow.model.payload import text_or_bytes
from windrow.model.timestamps import EPOCH, MICROSECOND, microseconds_of
from windrow.producer.payloads import GREATEST, LEAST, to_payload
from windrow.producer.row import table_of

KEPT_BYTES = 1_024  # how much of a line that is too large is kept
REQUIRED = ("key", "type", "event_time")
WHOLE = "*"
TEXT = re.compile(r"'((?:[^']|'')*)'")
TEXTS = ("source", "key", "type", "payload")
TEXTUAL = pa.string()
HALF = "\ud800"
JSON_TEXT = "\0"  # where the text of a payload is kept; no column can be mapped to a field of this name


@dataclass(frozen=True, slots=True)
class Fields:
    """The field or the constant text that fills each column of a message; the payload may be the `whole` line.

    A line with a field that fills no column is not a message, unless the whole line is kept: the field would be lost
    silently.
    """

    names: dict[str, str]
    texts: dict[str, str]
    whole: bool

    @classmethod
    def of(cls, values: Sequence[str]) -> Fields:
        """Read `column=field`, `column='text'` and `payload=*`; other columns take the field of the same name.

        Raises SettingsError.
        """
        names = {name: name for name in messages.COLUMNS}
        texts = {}
        for member in values:
            column, equals, value = member.partition("=")
            if not equals or not value or column not in names:
                _refuse(member)
            text = TEXT.fullmatch(value)
            if value == WHOLE or text:
                allowed = ("payload",) if value == WHOLE else TEXTS
                if column not in allowed:
                    _refuse(member)
                texts[column] = value if text is None else text[1].replace("''", "'")
            names[column] = value
        whole = names["payload"] == WHOLE
        return cls({name: field for name, field in names.items() if name not in texts}, texts, whole)


def _refuse(text: str) -> NoReturn:
    raise SettingsError(
        f"column {text!r} is not valid",
        f"Use column=field, or column='text' for source, key, type and payload, or payload=* for the whole line. "
        f"The columns are {', '.join(messages.COLUMNS)}.",
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that is not a message: its number, and why."""

    line: int
    reason: str


class InvalidLine(ValueError):
    """A line is not a message."""


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Lines from number `first` on as a table of messages, one row each, and the faults of invalid ones."""

    first: int
    table: pa.Table
    faults: list[Fault]

    @property
    def last(self) -> int:
        """Return the number of its last line."""
        return self.first + int(self.table.num_rows) - 1

    def before(self, line: int) -> LineBatch:
        """Return the lines before a given line."""
        faults = [fault for fault in self.faults if fault.line < line]
        return LineBatch(self.first, self.table.slice(0, line - self.first), faults)


class LineReader:
    """Turns lines into messages."""

    def __init__(self, fields: Fields, source: str, most_bytes: int, payload: pa.DataType = TEXTUAL) -> None:
        """Map columns by `fields`; `source` is the default, and a line of more than `most_bytes` is not a message."""
        self._fields, self._most_bytes, self._payload = fields, most_bytes, payload
        self._typed = text_or_bytes(payload) != payload
        if self._typed and (fields.whole or "payload" in fields.texts):
            raise SettingsError(
                f"the payloads of this depot are {name_of(payload)}, not text",
                "Map payload to a field that has such values.",
            )
        self._source = fields.texts.get("source", source)
        self._known = frozenset(fields.names.values())

    def read(self, lines: Sequence[Any], first: int, now: int) -> LineBatch:
        """Return lines as messages that arrived at `now` (microseconds); the first one has the number `first`."""
        result = [self._object(line) for line in lines]
        objects = [object_ for object_, _ in result]
        reasons = {at: reason for at, (_, reason) in enumerate(result) if reason}
        instead = {"source": self._source, "received_at": now} | self._fields.texts
        columns = {name: self._column(name, instead.get(name), objects, reasons) for name in messages.COLUMNS}
        if self._fields.whole:
            columns["payload"] = [self._whole(line) for line in lines]
        for at, reason in reasons.items():
            self._reject(columns, at, {"reason": reason} | self._keep_fields(lines[at]), now)
        faults = [Fault(first + at, reasons[at]) for at in sorted(reasons)]
        return LineBatch(first, table_of(columns.values(), messages.schema(self._payload)), faults)

    def _object(self, line: Any) -> tuple[dict[str, Any], str]:
        """Return the object in a line, and why the line is not a message; empty if it is one."""
        try:
            value = _decode(line, self._most_bytes)
        except InvalidLine as unfit:
            return {}, str(unfit)
        if not self._fields.whole and not value.keys() <= self._known:
            return value, f"no column is mapped to its field {min(value.keys() - self._known)!r}"
        field = self._fields.names.get("payload")
        if self._typed or field is None or isinstance(value.get(field), str | None):
            return value, ""
        try:
            return value | {JSON_TEXT: bytes(MEMBERS.decode(line)[field]).decode()}, ""
        except msgspec.DecodeError:  # half of a surrogate pair as an escape, in some field
            return value | {JSON_TEXT: HALF}, ""
        except RecursionError:
            return value, f"{field} nests too deeply"

    def _whole(self, line: Any) -> str | bytes | None:
        return str(line.decode(errors="replace").strip())

    def _keep_fields(self, line: Any) -> dict[str, Any]:
        """Return what the row of a line that is not a message keeps of it."""
        kept = line if len(line) <= self._most_bytes else line[:KEPT_BYTES]
        return {"line": kept.decode(errors="backslashreplace")}

    def _column(self, name: str, instead: Any, objects: list[dict[str, Any]], reasons: dict[int, str]) -> list[Any]:
        """Return a column; most have values of one type, which need not be checked one by one."""
        field = self._fields.names.get(name)
        if field is None:
            return [instead] * len(objects)
        values: list[Any] = [object_.get(field) for object_ in objects]
        if name == "payload":
            values = [object_.get(JSON_TEXT, value) for object_, value in zip(objects, values, strict=True)]
        kinds = set(map(type, values))
        if kinds == {type(None)} and name not in REQUIRED:
            return [instead] * len(objects)
        typed_payload = self._typed and name == "payload"
        if kinds == {str} and not typed_payload and (quick := QUICK[name](values)) is not None:
            return quick
        for at, value in enumerate(values):
            try:
                if typed_payload:
                    values[at] = self._convert_payload(field, value)
                else:
                    values[at] = _convert(name, field, value, instead)
            except InvalidLine as unfit:
                reasons.setdefault(at, str(unfit))
                values[at] = None
        return values

    def _convert_payload(self, field: str, value: Any) -> Any:
        for member in value.values() if isinstance(value, dict) else [value]:
            if isinstance(member, float) and isinf(member):  # JSON has no infinity, but Python reads 1e400 as one
                raise InvalidLine(f"{field} has a number that is too large")
        try:
            return to_payload(value, self._payload)
        except ValueError as error:
            raise InvalidLine(f"{field} {error}") from None

    def _reject(self, columns: dict[str, list[Any]], at: int, kept: dict[str, Any], now: int) -> None:
        """Make a row that the batcher rejects: its event time is NULL, its payload has the reason and the line.

        If payloads are not text, `type` has both.
        """
        row: dict[str, Any] = {"source": self._source, "event_time": None, "received_at": now, "sequence": None}
        row |= {"payload": None, "type" if self._typed else "payload": json.dumps(kept, ensure_ascii=False)}
        for name, value in row.items():
            columns[name][at] = value


def _decode(line: bytes, most_bytes: int) -> dict[str, Any]:
    if len(line) > most_bytes:
        raise InvalidLine(f"it has more than {most_bytes:,} bytes")
    try:
        value = DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise InvalidLine(f"it is not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        why = f"it is not JSON: {error.msg} at character {error.pos + 1}" if error.doc.strip() else "it is empty"
        raise InvalidLine(why) from None
    except (ValueError, RecursionError) as error:
        raise InvalidLine(f"its JSON cannot be read: {str(error).partition(';')[0]}") from None
    if not isinstance(value, dict):
        raise InvalidLine("it is not a JSON object")
    return value


def _convert(name: str, field: str, value: Any, instead: Any) -> Any:
    if value is not None:
        return CONVERSIONS[name](field, value)
    if name in REQUIRED:
        raise InvalidLine(f"{field} is missing")
    return instead


def _quick_times(values: list[str]) -> list[int] | None:
    try:
        return [(datetime.fromisoformat(value) - EPOCH) // MICROSECOND for value in values]
    except (TypeError, ValueError):  # a value has no zone, or is not a time
        return None


def _whole_text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidLine(f"{field} is not text")
    return _unicode(field, value)


def _unicode(field: str, value: str) -> str:
    """Return a text that UTF-8 can hold: JSON can contain half of a surrogate pair."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidLine(f"{field} contains half of a character") from None
    return value


def _time(field: str, value: Any) -> int:
    if not isinstance(value, str):
        return _number(field, value, "neither an ISO 8601 time with a zone nor whole microseconds")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidLine(f"{field} is not a time: {value[:40]!r}") from None
    if moment.tzinfo is None:
        raise InvalidLine(f"{field} has no time zone")
    return microseconds_of(moment)


def _number(field: str, value: Any, otherwise: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not LEAST <= value <= GREATEST:
        raise InvalidLine(f"{field} is {otherwise}")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
DECODER = json.JSONDecoder(parse_constant=_constant)
CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(TEXTS, _whole_text),
    **dict.fromkeys(messages.TIMES, _time),
    "sequence": partial(_number, otherwise="not a 64-bit integer"),
}
QUICK: dict[str, Callable[[list[str]], list[Any] | None]] = {
    **dict.fromkeys(TEXTS, lambda values: values if "".join(values).isascii() else None),
    **dict.fromkeys(messages.TIMES, _quick_times),
    "sequence": lambda values: None,
}

"""Lines of JSON as messages: which field is which column, and what becomes of a line that is no message.

Each line is read by itself. Arrow reads many at once, but takes two objects in a line for two messages and an empty
line for none, so that nobody could say any more which line is which message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import pyarrow as pa

from windrow import messages
from windrow.errors import SettingsError
from windrow.moments import microseconds_of
from windrow.producer.row import GREATEST, LEAST, table_of

KEPT_OCTETS = 1_024  # of a line that is too large
WHOLE = "*"
TEXT = re.compile(r"'((?:[^']|'')*)'")
REQUIRED = ("key", "type", "event_time")


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that is no message: its number, and why."""

    line: int
    reason: str


class Unfit(ValueError):
    """A line is no message."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Lines from number `first` on as a table of messages, one row each, and which of them are none."""

    first: int
    table: pa.Table
    faults: list[Fault]

    @property
    def last(self) -> int:
        """Return the number of its last line."""
        return self.first + int(self.table.num_rows) - 1

    def before(self, line: int) -> Portion:
        """Return the part of it that comes before a line."""
        faults = [fault for fault in self.faults if fault.line < line]
        return Portion(self.first, self.table.slice(0, line - self.first), faults)


@dataclass(frozen=True, slots=True)
class Fields:
    """Which field of a line gives each column of a message, or which text; the payload may be the whole line.

    A field that gives none makes the line no message, unless the whole line is kept: what is in nobody's column would
    be lost in silence.
    """

    names: dict[str, str]
    texts: dict[str, str]
    whole: bool

    @classmethod
    def of(cls, given: Sequence[str]) -> Fields:
        """Read `column=field`, `column='text'` and `payload=*`; a column left out is the field of its own name.

        Raises SettingsError.
        """
        names = {name: name for name in messages.COLUMNS}
        texts = {}
        for one in given:
            column, equals, value = one.partition("=")
            if not equals or not value or column not in names:
                _refuse(one)
            text = TEXT.fullmatch(value)
            if value == WHOLE or text:
                allowed = ("payload",) if value == WHOLE else ("source", "key", "type", "payload")
                if column not in allowed:
                    _refuse(one)
                texts[column] = value if text is None else text[1].replace("''", "'")
            names[column] = value
        whole = names["payload"] == WHOLE
        return cls({name: field for name, field in names.items() if name not in texts}, texts, whole)


class Reader:
    """Makes messages of lines."""

    def __init__(self, fields: Fields, source: str, most_octets: int) -> None:
        """Read by `fields`; `source` is that of a line that names none, a line of more octets is no message."""
        self._source = fields.texts.get("source", source)
        self._whole, self._most_octets = fields.whole, most_octets
        self._known = frozenset(fields.names.values())
        self._columns = [self._column(name, fields) for name in messages.COLUMNS]

    def read(self, lines: Sequence[bytes], first: int, now: int) -> Portion:
        """Return lines as messages that arrived at `now`, microseconds; the first one has the number `first`."""
        rows, faults = [], []
        for number, line in enumerate(lines, first):
            try:
                rows.append(self._message(line, now))
            except Unfit as unfit:
                faults.append(Fault(number, str(unfit)))
                rows.append(self._rejected(line, now))
        return Portion(first, table_of(rows, pa.string()), faults)

    def _message(self, line: bytes, now: int) -> tuple[Any, ...]:
        if len(line) > self._most_octets:
            raise Unfit(f"it has more than {self._most_octets:,} octets")
        text = _text(line)
        found = _object(text)
        if not self._whole and not found.keys() <= self._known:
            raise Unfit(f"no column takes its field {min(found.keys() - self._known)!r}")
        return tuple(column(found, text, now) for column in self._columns)

    def _rejected(self, line: bytes, now: int) -> tuple[Any, ...]:
        """Return a row that the batcher rejects, with the line for whoever looks after it."""
        kept = line if len(line) <= self._most_octets else line[:KEPT_OCTETS]
        return self._source, None, None, None, now, None, kept.decode(errors="backslashreplace")

    def _column(self, name: str, fields: Fields) -> Callable[[dict[str, Any], str, int], Any]:
        if name == "payload" and fields.whole:
            return lambda found, text, now: text.strip()
        if name in fields.texts:
            fixed = fields.texts[name]
            return lambda found, text, now: fixed
        field, convert = fields.names[name], CONVERSIONS[name]
        if name in REQUIRED:
            return lambda found, text, now: convert(field, _present(found, field))
        instead: Callable[[int], Any] = {"source": lambda now: self._source, "received_at": lambda now: now}.get(
            name, lambda now: None
        )
        return lambda found, text, now: instead(now) if (value := found.get(field)) is None else convert(field, value)


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise Unfit(f"it is no UTF-8 at octet {error.start + 1}") from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise Unfit(
            f"it is no JSON: {error.msg} at character {error.pos + 1}" if text.strip() else "it is empty"
        ) from None
    except (ValueError, RecursionError) as error:
        raise Unfit(f"it is no JSON that can be read: {str(error).partition(';')[0]}") from None
    if not isinstance(found, dict):
        raise Unfit("it is no JSON object")
    return found


def _present(found: dict[str, Any], field: str) -> Any:
    value = found.get(field)
    if value is None:
        raise Unfit(f"{field} is missing")
    return value


def _whole_text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit(f"{field} is no text")
    return _unicode(field, value)


def _unicode(field: str, value: str) -> str:
    """Return a text that can be written: JSON can name half of a character."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unfit(f"{field} holds half of a character") from None
    return value


def _time(field: str, value: Any) -> int:
    if not isinstance(value, str):
        return _number(field, value, "neither a time with a zone, ISO 8601, nor whole microseconds")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise Unfit(f"{field} is no time: {value[:40]!r}") from None
    if moment.tzinfo is None:
        raise Unfit(f"{field} has no time zone")
    return microseconds_of(moment)


def _sequence(field: str, value: Any) -> int:
    return _number(field, value, "no whole number of 64 bits")


def _number(field: str, value: Any, otherwise: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not LEAST <= value <= GREATEST:
        raise Unfit(f"{field} is {otherwise}")
    return value


def _payload(field: str, value: Any) -> str:
    if isinstance(value, str):
        return _unicode(field, value)
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise Unfit(f"{field} holds a number that is too large") from None
    except RecursionError:
        raise Unfit(f"{field} is nested too deep") from None
    return _unicode(field, written)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _refuse(given: str) -> NoReturn:
    raise SettingsError(
        f"--column {given!r} says nothing",
        f"Say column=field, or column='text' for source, key, type and payload, or payload=* for the whole line. "
        f"Columns are {', '.join(messages.COLUMNS)}.",
    )


DECODER = json.JSONDecoder(parse_constant=_constant)
CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {
    "source": _whole_text,
    "key": _whole_text,
    "type": _whole_text,
    "event_time": _time,
    "received_at": _time,
    "sequence": _sequence,
    "payload": _payload,
}

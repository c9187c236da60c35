"""Formats that are read one record at a time, by functions of another package; types, NULLs and reasons are Windrow's.

A function returns the values of a record by the names of fields. Each value becomes a text, which is converted to the
type of its field as a column of CSV is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.errors import first_line
from windrow.formats import grammar
from windrow.formats.automaton import Automaton
from windrow.formats.conversion import ENCODING, convert
from windrow.formats.fields import Field, require_unsized
from windrow.formats.format import Format
from windrow.formats.framing import DelimitedFraming, FindEnd, FunctionFinder
from windrow.formats.installed import TRANSIENT, failed
from windrow.formats.part import FormatPart
from windrow.formats.records import SYNTAX, Bad, OfFields, Parsed, Records, rejects

Read = Callable[[bytes], Mapping[str, Any] | None]


def per_record(
    settings: FormatPart,
    fields: tuple[Field, ...],
    read: Read,
    ends: bytes | Automaton | FindEnd = b"\n",
    *,
    resume_at: bytes = b"",
    text: bool = True,
) -> Format:
    """Return a format of which `read` turns one record into values by field name, or None for a record to skip.

    `ends` says where records end: at a delimiter, which `read` does not get; by an automaton; or where a function
    `(data, begin) -> int | None` says. After a record of more than `max_record_bytes` framing resumes after the next
    `resume_at`; without it, the rest of the source is rejected. With `text`, a source may begin with a byte-order mark.
    Raises SettingsError for fields of fixed size.
    """
    name = settings.type or ""
    require_unsized(fields, name)
    most, parser = settings.max_record_bytes, PerRecord(name, fields, read, settings.nulls)
    if isinstance(ends, bytes):
        return Format(DelimitedFraming(grammar.delimited(ends), ends, most), parser, text=text)
    finder = ends if isinstance(ends, Automaton) else FunctionFinder(name, ends)
    return Format(DelimitedFraming(finder, resume_at, most, strip_delimiter=False), parser, text=text)


@dataclass(frozen=True, slots=True)
class PerRecord(OfFields):
    """The parser of records that a function reads. A record for which it raises is bad; its texts may be `nulls`."""

    name: str
    fields: tuple[Field, ...]
    read: Read
    nulls: tuple[str, ...] = ("",)

    def parse(self, records: Records) -> Parsed:
        """Return the values of the good records, and the reasons of the bad ones. Raises FormatFailed."""
        nulls = frozenset(text.encode() for text in self.nulls)
        rows: dict[int, list[bytes | None] | None] = {}
        bad: dict[int, Bad] = {}
        for number in range(records.count):
            try:
                rows[number] = self._texts(self.read(records.of(number)), nulls)
            except UnicodeError as error:
                bad[number] = Bad(ENCODING, None, f"not UTF-8: {first_line(error)}")
            except TRANSIENT as error:
                raise failed(self.name, "read a record", error) from error
            except ValueError as error:
                bad[number] = Bad(SYNTAX, None, first_line(error))
            except Exception as error:  # noqa: BLE001 a record that a package cannot read must not stop the others
                bad[number] = Bad(SYNTAX, None, f"{self.name}: {type(error).__name__}: {first_line(error)}")
        skipped = np.array([number for number, row in rows.items() if row is None], np.int64)
        kept = {number: row for number, row in rows.items() if row is not None}
        texts = (pa.array([row[at] for row in kept.values()], pa.binary()) for at in range(len(self.fields)))
        numbers = np.array(list(kept), np.int64)
        return self.joined(map(convert, texts, self.fields), numbers, [rejects(bad)], skipped)

    def _texts(self, found: Mapping[str, Any] | None, nulls: frozenset[bytes]) -> list[bytes | None] | None:
        """Return a record's texts by field, None for one to skip. Raises ValueError and TypeError."""
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise TypeError(f"it returned {type(found).__name__}, not a mapping")
        texts = [_text(found.get(field.name), field.type) for field in self.fields]
        return [None if text in nulls else text for text in texts]


def _text(value: Any, type_: pa.DataType | None = None) -> bytes | None:  # noqa: PLR0911 one line for each type
    """Return a value as the text of a column of a type; None for NULL. Raises TypeError for a value without one."""
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, Integral):
        return b"%d" % int(value)
    if isinstance(value, float):
        return float.__repr__(value).encode()
    if isinstance(value, date | time):
        return value.isoformat().encode()
    if isinstance(value, Decimal):
        return str(value).encode()
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(_plain(value, type_), ensure_ascii=False).encode()
    raise TypeError(f"a {type(value).__name__} cannot become text")


def _plain(value: Any, type_: pa.DataType | None) -> Any:
    """Return a value, and what is inside of it, as JSON knows it: bytes are base64 where they stay bytes."""
    if isinstance(value, Mapping):
        return {name: _plain(one, _inside(type_, name)) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, _inside(type_)) for one in value]
    if value is None or isinstance(value, str | bool | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    text = _text(value) or b""
    return base64.b64encode(text).decode() if type_ == pa.binary() else text.decode()


def _inside(type_: pa.DataType | None, name: object = None) -> pa.DataType | None:
    """Return the type of the values in a list or map, or of the field of a struct with this name; None if unknown."""
    if isinstance(type_, pa.StructType):
        return type_.field(name).type if name in type_.names else None
    if isinstance(type_, pa.MapType):
        return type_.item_type
    return getattr(type_, "value_type", None)

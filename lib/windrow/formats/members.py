"""Decode records that are each one object (JSON, MessagePack), and build Arrow columns from their members.

Records are decoded one by one, because that alone ensures that a bad record does not affect its neighbours. It costs
little: no Python code runs per member, and columns are built from a few thousand objects at a time, which are still in
the processor's cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from windrow.columnar.compiled import Ints
from windrow.errors import SettingsError
from windrow.formats.conversion import CAST, ENCODING
from windrow.formats.fields import Field, require_unsized, type_text
from windrow.formats.records import SYNTAX, FieldParser, ParseResult, RecordError, Records, rejects
from windrow.formats.shapes import (
    FAILURES,
    Node,
    column,
    convert_value,
    has_field_type,
    is_raw,
    is_readable,
    nodes,
    structure,
)

SLICE_RECORDS = 4096
SLICE_BYTES = 2**26
MAX_VALUE = 60
MSGPACK = msgspec.msgpack.Decoder(msgspec.Raw)
TOO_DEEP = "nests too deeply"
PLACED = re.compile(r"(?:.* is malformed: )?(?P<message>.*?) \(byte (?P<place>\d+)\)", re.DOTALL)


class ObjectParser(FieldParser):
    """The parser of records that are objects with these fields."""

    def __init__(
        self, fields: Sequence[Field], decode: Callable[[bytes], Any], untyped: Callable[[bytes], Any]
    ) -> None:
        """Decode by the method of a msgspec decoder of `shapes.structure`; `untyped` is that of one without types."""
        self.fields = tuple(fields)
        self._decode, self._untyped = decode, untyped

    def _with(self, fields: tuple[Field, ...]) -> Self:
        kind: Any = type(self)
        return kind(fields)

    def explain(self, buffer: bytes, error: Exception) -> RecordError | None:
        """Say why a record cannot be decoded; None if it is empty and to be skipped."""
        raise NotImplementedError

    def untyped(self, buffer: bytes) -> Any:
        """Decode a record without types; `Repeated` are objects of which all members with one name are known."""
        return self._untyped(buffer)

    def parse_chosen(self, records: Records, chosen: Ints, known: dict[int, RecordError]) -> ParseResult:
        """Return the values of the chosen records, and the reasons of the bad ones; `known` are bad already."""
        bad: dict[int, RecordError | None] = dict(known)
        batches, kept = [], []
        for numbers in _slices(records, chosen):
            batch, those = self._slice(records, numbers, bad)
            batches.append(batch)
            kept.append(those)
        return ParseResult(
            pa.Table.from_batches(batches, self.schema),
            np.concatenate([np.empty(0, np.int64), *kept]),
            rejects({number: why for number, why in bad.items() if why is not None}),
            np.array(sorted(number for number, why in bad.items() if why is None), np.int64),
        )

    def explain_mismatch(self, buffer: bytes, error: Exception) -> RecordError:
        """Explain where a well-formed record does not fit the fields."""
        message, _, place = str(error).partition(" - at `")
        path = place.removesuffix("`")
        if not path.startswith("$"):
            return RecordError(SYNTAX, None, str(error).lower())
        node_at_fault = next(
            (node for node in self._nodes(buffer, self.untyped) if node.path == path and not has_field_type(node)), None
        )
        return RecordError(CAST, self._field(path), f"{path}: {message.lower()}{_shown(node_at_fault)}")

    def _slice(
        self, records: Records, numbers: Ints, bad: dict[int, RecordError | None]
    ) -> tuple[pa.RecordBatch, Ints]:
        pieces = _pieces(records, numbers)
        rows: list[Any] = []
        failed: list[int] = []
        decoded = map(self._decode, pieces)
        while True:
            try:
                rows.extend(decoded)  # keeps what was decoded before a failure; the next round continues after it
                break
            except FAILURES as error:
                at = len(rows) + len(failed)
                failed.append(at)
                bad[int(numbers[at])] = self.explain(pieces[at], error)
        return self._batch(records, rows, np.delete(numbers, failed), bad)

    def _batch(
        self, records: Records, rows: list[Any], numbers: Ints, bad: dict[int, RecordError | None]
    ) -> tuple[pa.RecordBatch, Ints]:
        columns, wrong = [], np.zeros(len(rows), np.bool_)
        for number, field in enumerate(self.fields):
            array, flags = column(list(map(attrgetter(f"_{number}"), rows)), field)
            columns.append(array)
            wrong |= flags
        for at in np.flatnonzero(wrong):
            bad[int(numbers[at])] = self._untimely(records.of(numbers[at]))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return (batch.filter(pa.array(~wrong)), numbers[~wrong]) if wrong.any() else (batch, numbers)

    def _untimely(self, buffer: bytes) -> RecordError:
        """Explain which time of a record cannot be read."""
        untimely = next((node for node in self._nodes(buffer, self._untyped) if not is_readable(node)), None)
        if untimely is None:
            return RecordError(CAST, None, "a time cannot be read")
        return RecordError(
            CAST, untimely.field.name, f"{untimely.path}: no {type_text(Field('', untimely.type))}{_shown(untimely)}"
        )

    def _nodes(self, buffer: bytes, decode: Callable[[bytes], Any]) -> Iterator[Node]:
        try:
            record = decode(buffer)
        except (ValueError, RecursionError):  # such as for an integer of thousands of digits
            return
        yield from nodes(record, self.fields)

    def _field(self, path: str) -> str | None:
        names = [field.name for field in self.fields if path.startswith(f"$.{field.name}")]
        return max(names, key=len, default=None)


class MessagePack(ObjectParser):
    """The parser of MessagePack: each record is one map. Raises SettingsError for fields that MessagePack cannot have.

    Fields and reject reasons are the same as in JSON, with these differences: binary values are binary, texts without a
    field need not be UTF-8, and there are no `json` fields. Times are texts.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        for field in fields:
            if is_raw(field):
                raise SettingsError(f"field {field.name!r}: msgpack has no json fields", "Use another type.")
        require_unsized(fields, "msgpack")
        decoder = msgspec.msgpack.Decoder(structure(fields), dec_hook=convert_value)
        super().__init__(fields, decoder.decode, msgspec.msgpack.decode)

    def parse(self, records: Records) -> ParseResult:
        """Return the values of the good records, and the reasons of the bad ones."""
        return self.parse_chosen(records, np.arange(records.count), {})

    def explain(self, buffer: bytes, error: Exception) -> RecordError:
        """Say why a record cannot be decoded."""
        bad = ill_formed(MSGPACK, buffer, "ends too early")
        if bad is not None:
            return bad
        if isinstance(error, UnicodeDecodeError):
            return RecordError(ENCODING, None, f"a text is not UTF-8: {error.reason}")
        return self.explain_mismatch(buffer, error)


def ill_formed(decoder: Any, buffer: bytes, unplaced: str) -> RecordError | None:
    """Explain why a decoder without types refuses a record, None if it is well-formed; `unplaced`: without a place."""
    try:
        decoder.decode(buffer)
    except RecursionError:
        return RecordError(SYNTAX, None, TOO_DEEP)
    except msgspec.DecodeError as malformed:
        placed = PLACED.fullmatch(str(malformed))
        return RecordError(SYNTAX, None, f"{placed['message']} at byte {placed['place']}" if placed else unplaced)
    return None


def _slices(records: Records, numbers: Ints) -> Iterator[Ints]:
    """Split the numbers so that few records and bytes are decoded at a time."""
    byte_counts = np.cumsum(records.end[numbers] - records.start[numbers])
    rank = np.arange(len(numbers)) // SLICE_RECORDS + byte_counts // SLICE_BYTES
    cuts = np.flatnonzero(np.diff(rank)) + 1
    return (slice_ for slice_ in np.split(numbers, cuts) if len(slice_))


def _pieces(records: Records, numbers: Ints) -> list[bytes]:
    """Return the bytes of records."""
    start, end = records.start[numbers], records.end[numbers]
    first, buffer = start[0], records.buffer[start[0] : end[-1]].tobytes()
    return [buffer[begin:stop] for begin, stop in zip((start - first).tolist(), (end - first).tolist(), strict=True)]


def _shown(node: Node | None) -> str:
    if node is None:
        return ""
    text = json.dumps(node.value, ensure_ascii=False, default=str, skipkeys=True)
    return f": {text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + '…'}"

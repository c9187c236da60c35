"""Decode records that are each one object (JSON, MessagePack), and build Arrow columns from their members.

Records are decoded one by one, because that alone ensures that a bad record does not affect its neighbours. It costs
little: no Python code runs per member, and columns are built from a few thousand objects at a time, which are still in
the processor's cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.formats.fields import Field, type_text
from windrow.formats.records import CAST, SYNTAX, Bad, Ints, Parsed, Records, rejects
from windrow.formats.shapes import FAILURES, Node, column, good, nodes

SLICE_RECORDS = 4096
SLICE_BYTES = 2**26
LONGEST_VALUE = 60
TOO_DEEP = "nests too deeply"


@dataclass(frozen=True, slots=True)
class Members:
    """Decodes records with these fields.

    `decode` is the method of a msgspec decoder of `shapes.structure`, `untyped` that of one without types. `explain`
    says why a record cannot be decoded, or None if the record is empty and to be skipped.
    """

    fields: tuple[Field, ...]
    decode: Callable[[bytes], Any]
    untyped: Callable[[bytes], Any]
    explain: Callable[[bytes, Exception], Bad | None]

    @property
    def schema(self) -> pa.Schema:
        """Return the names and types of the fields."""
        return pa.schema([(field.name, field.type) for field in self.fields])

    def parse(self, records: Records, chosen: Ints, known: dict[int, Bad]) -> Parsed:
        """Return the values of the chosen records, and the reasons of the bad ones; `known` are bad already."""
        bad: dict[int, Bad | None] = dict(known)
        batches, kept = [], []
        for numbers in _slices(records, chosen):
            batch, those = self._slice(records, numbers, bad)
            batches.append(batch)
            kept.append(those)
        return Parsed(
            pa.Table.from_batches(batches, self.schema),
            np.concatenate([np.empty(0, np.int64), *kept]),
            rejects({number: why for number, why in bad.items() if why is not None}),
            np.array(sorted(number for number, why in bad.items() if why is None), np.int64),
        )

    def misfit(self, buffer: bytes, error: Exception) -> Bad:
        """Explain where a well-formed record does not fit the fields."""
        message, _, place = str(error).partition(" - at `")
        path = place.removesuffix("`")
        if not path.startswith("$"):
            return Bad(SYNTAX, None, str(error).lower())
        found = next((node for node in self._nodes(buffer) if node.path == path), None)
        return Bad(CAST, self._field(path), f"{path}: {message.lower()}{_shown(found)}")

    def _slice(self, records: Records, numbers: Ints, bad: dict[int, Bad | None]) -> tuple[pa.RecordBatch, Ints]:
        pieces = _pieces(records, numbers)
        rows: list[Any] = []
        failed: list[int] = []
        decoded = map(self.decode, pieces)
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
        self, records: Records, rows: list[Any], numbers: Ints, bad: dict[int, Bad | None]
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

    def _untimely(self, buffer: bytes) -> Bad:
        """Explain which time of a record cannot be read."""
        found = next((node for node in self._nodes(buffer) if not good(node)), None)
        if found is None:
            return Bad(CAST, None, "a time cannot be read")
        return Bad(CAST, found.field.name, f"{found.path}: no {type_text(Field('', found.type))}{_shown(found)}")

    def _nodes(self, buffer: bytes) -> Iterator[Node]:
        try:
            record = self.untyped(buffer)
        except FAILURES:
            return
        yield from nodes(record, self.fields)

    def _field(self, path: str) -> str | None:
        names = [field.name for field in self.fields if path.startswith(f"$.{field.name}")]
        return max(names, key=len, default=None)


def _slices(records: Records, numbers: Ints) -> Iterator[Ints]:
    """Split the numbers so that few records and bytes are decoded at a time."""
    byte_counts = np.cumsum(records.end[numbers] - records.begin[numbers])
    rank = np.arange(len(numbers)) // SLICE_RECORDS + byte_counts // SLICE_BYTES
    cuts = np.flatnonzero(np.diff(rank)) + 1
    return (slice_ for slice_ in np.split(numbers, cuts) if len(slice_))


def _pieces(records: Records, numbers: Ints) -> list[bytes]:
    """Return the bytes of records; split them the fastest way if one byte separates them and is in none of them."""
    begin, end = records.begin[numbers], records.end[numbers]
    first, buffer = begin[0], records.buffer[begin[0] : end[-1]].tobytes()
    if len(numbers) > 1 and np.all(begin[1:] - end[:-1] == 1) and np.ptp(records.buffer[end[:-1]]) == 0:
        pieces = buffer.split(buffer[end[0] - first : begin[1] - first])
        if len(pieces) == len(numbers):
            return pieces
    return [buffer[one:other] for one, other in zip((begin - first).tolist(), (end - first).tolist(), strict=True)]


def _shown(node: Node | None) -> str:
    if node is None:
        return ""
    text = json.dumps(node.value, ensure_ascii=False, default=str, skipkeys=True)
    return f": {text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + '…'}"

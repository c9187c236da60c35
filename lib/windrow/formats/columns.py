"""Columns: the texts of all fields of some records, made values or reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from windrow.formats.conversion import convert
from windrow.formats.fields import Field
from windrow.formats.records import Ints, Parsed, alike, joined
from windrow.formats.texts import Texts


def parsed(
    fields: Sequence[Field], texts: Iterable[Texts], record: Ints, refused: Iterable[pa.Table], skipped: Ints
) -> Parsed:
    """Convert the texts of fields, one for each number in `record`. A record is refused for its first bad field."""
    good, values, reasons = np.ones(record.size, np.bool_), [], list(refused)
    for field, column in zip(fields, texts, strict=True):
        converted = convert(column, field)
        values.append(converted.values)
        first = good[converted.bad]
        if first.any():
            detail = converted.detail.filter(pa.array(first))
            reasons.append(alike(record[converted.bad[first]], converted.reason, field.name, detail))
        good[converted.bad] = False
    if not good.all():
        kept = pa.array(good)
        values, record = [column.filter(kept) for column in values], record[good]
    return Parsed(pa.Table.from_arrays(values, schema=schema(fields)), record, joined(reasons), skipped)


def schema(fields: Iterable[Field]) -> pa.Schema:
    """Return the fields and their types."""
    return pa.schema([(field.name, field.type) for field in fields])

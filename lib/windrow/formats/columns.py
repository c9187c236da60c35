"""Convert the texts of all fields of some records to columns of values, and collect the reasons of bad records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from windrow.formats.conversion import Converted, convert
from windrow.formats.fields import Field
from windrow.formats.records import Ints, Parsed, merged_rejects, uniform_rejects
from windrow.formats.texts import Texts


def parsed(
    fields: Sequence[Field], texts: Iterable[Texts], record: Ints, refused: Iterable[pa.Table], skipped: Ints
) -> Parsed:
    """Convert the texts of fields, one for each number in `record`; see `joined`."""
    return joined(fields, map(convert, texts, fields), record, refused, skipped)


def joined(
    fields: Sequence[Field], columns: Iterable[Converted], record: Ints, refused: Iterable[pa.Table], skipped: Ints
) -> Parsed:
    """Join the values of fields, one for each number in `record`. The first bad field gives a record's reason."""
    good, values, reasons = np.ones(record.size, np.bool_), [], list(refused)
    for field, converted in zip(fields, columns, strict=True):
        values.append(converted.values)
        first = good[converted.bad]
        if first.any():
            detail = converted.detail.filter(pa.array(first))
            reasons.append(uniform_rejects(record[converted.bad[first]], converted.reason, field.name, detail))
        good[converted.bad] = False
    if not good.all():
        kept = pa.array(good)
        values, record = [column.filter(kept) for column in values], record[good]
    return Parsed(pa.Table.from_arrays(values, schema=schema(fields)), record, merged_rejects(reasons), skipped)


def schema(fields: Iterable[Field]) -> pa.Schema:
    """Return the names and types of fields."""
    return pa.schema([(field.name, field.type) for field in fields])

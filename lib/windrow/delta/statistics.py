"""Compute the statistics of a file for Delta's log: its rows, and each column's least and greatest value and NULLs.

Readers skip files by these statistics. Columns with long text, with times outside the years of ISO 8601, or of types
other than text, time and integer get no bounds. Such a file is always read, which is slower but correct.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.timestamps import EPOCH, MICROSECOND

MAX_CHARACTERS = 256  # characters


def statistics(rows: pa.Table) -> str:
    """Return the statistics of a file with these rows, as JSON."""
    bounds = {name: result for name in rows.column_names if (result := _bounds(rows[name])) is not None}
    document = {
        "numRecords": rows.num_rows,
        "minValues": {name: least for name, (least, _) in bounds.items()},
        "maxValues": {name: greatest for name, (_, greatest) in bounds.items()},
        "nullCount": {
            name: rows[name].null_count for name in rows.column_names if not pa.types.is_nested(rows[name].type)
        },
    }
    return json.dumps(document)


def _bounds(column: pa.ChunkedArray) -> tuple[str | int, str | int] | None:
    """Return the least and the greatest value as the log writes them, None if they are left out."""
    type_ = column.type
    if column.null_count == len(column):
        return None
    if pa.types.is_timestamp(type_):
        return _times(column)
    if pa.types.is_integer(type_) or pa.types.is_string(type_):
        bounds = pc.min_max(column)
        least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
        longest = max(len(least), len(greatest)) if isinstance(least, str) else 0
        return (least, greatest) if longest <= MAX_CHARACTERS else None
    return None


def _times(column: pa.ChunkedArray) -> tuple[str, str] | None:
    bounds = pc.min_max(column.cast(pa.int64()))
    try:
        least, greatest = (EPOCH + bounds[name].as_py() * MICROSECOND for name in ("min", "max"))
    except OverflowError:
        return None
    return least.isoformat(timespec="microseconds"), greatest.isoformat(timespec="microseconds")

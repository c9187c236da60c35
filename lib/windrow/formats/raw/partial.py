"""Read and write the `partial` rows of a ledger: the state of raw sources that are not finished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from windrow.columnar.arrow import TIME, counted
from windrow.formats.raw.source import Source
from windrow.model import tables

COLUMNS = [
    ("id", pa.string()), ("state", pa.string()), ("known", pa.bool_()), ("raw_source", pa.string()),
    ("chunk", pa.int64()), ("last", pa.bool_()), ("content", pa.binary()), ("framing", pa.string()),
    ("digests", pa.binary()), ("received_at", TIME), ("depot_version", pa.int64()), ("reason", pa.string()),
]  # fmt: skip
SCHEMA = pa.schema(COLUMNS)


def sources_of(partial: pa.Table) -> dict[str, Source]:
    """Return the sources in the `partial` rows of a ledger."""
    names = [name for name in SCHEMA.names if name in partial.column_names]
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in counted(partial.select(names)).to_pylist():
        rows[row["raw_source"]].append(row)
    return {name: Source.of(own) for name, own in rows.items()}


def changes(before: pa.Table, touched: Iterable[Source]) -> pa.Table:
    """Return the rows that change: those of the touched sources, and those of chunks that are no longer held."""
    known = dict(zip(before["id"].to_pylist(), before["raw_source"].to_pylist(), strict=True))
    rows: list[dict[str, Any]] = []
    names = set()
    for source in touched:
        names.add(source.name)
        own = list(source.rows())
        rows += [one | {"known": one["id"] in known} for one in own if one["id"] not in known or "framing" in one]
        kept = {one["id"] for one in own}
        rows += [
            {"id": id_, "state": tables.GONE, "known": True, "raw_source": source.name}
            for id_, name in known.items()
            if name == source.name and id_ not in kept
        ]
    return table_of([{"state": "partial"} | row for row in rows], SCHEMA)


def table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows as a table; times are given in microseconds."""
    numbers = pa.schema([(field.name, pa.int64() if field.type == TIME else field.type) for field in schema])
    return pa.Table.from_pylist(rows, numbers).cast(schema)

"""Read and write the `partial` rows of a ledger: the state of raw sources that are not finished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME, counted, texts
from windrow.formats.raw.source import Source
from windrow.model import tables

COLUMNS = [
    ("id", pa.string()), ("state", pa.string()), ("known", pa.bool_()), ("raw_source", pa.string()),
    ("chunk", pa.int64()), ("last", pa.bool_()), ("content", pa.binary()), ("framing", pa.string()),
    ("digests", pa.binary()), ("received_at", TIME), ("depot_version", pa.int64()), ("reason", pa.string()),
]  # fmt: skip
SCHEMA = pa.schema(COLUMNS)


def sources_of(partial: pa.Table, names: Collection[str] | None = None) -> dict[str, Source]:
    """Return the sources with these names in the `partial` rows of a ledger, or all sources."""
    columns = [name for name in SCHEMA.names if name in partial.column_names]
    if names is not None:
        partial = partial.filter(pc.is_in(partial["raw_source"], texts(list(names))))
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in counted(partial.select(columns)).to_pylist():
        rows[row["raw_source"]].append(row)
    return {name: Source.of(own) for name, own in rows.items()}


def changes(before: pa.Table, touched: Iterable[Source]) -> pa.Table:
    """Return the rows that change: those of the touched sources, and those of chunks that are no longer held."""
    known: dict[str, set[str]] = defaultdict(set)
    for id_, name in zip(before["id"].to_pylist(), before["raw_source"].to_pylist(), strict=True):
        known[name].add(id_)
    rows: list[dict[str, Any]] = []
    for source in touched:
        own, ids = list(source.rows()), known[source.name]
        rows += [one | {"known": one["id"] in ids} for one in own if one["id"] not in ids or "framing" in one]
        gone = ids - {one["id"] for one in own}
        rows += [{"id": id_, "state": tables.GONE, "known": True, "raw_source": source.name} for id_ in sorted(gone)]
    return table_of([{"state": "partial"} | row for row in rows], SCHEMA)


def table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows as a table; times are given in microseconds."""
    numbers = pa.schema([(field.name, pa.int64() if field.type == TIME else field.type) for field in schema])
    return pa.Table.from_pylist(rows, numbers).cast(schema)

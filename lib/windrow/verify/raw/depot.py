"""Format a raw depot again, a few raw sources at a time, and at once all versions that were read in the same way.

The ledger was written microbatch by microbatch, in the order in which chunks arrived. The content of a raw source
depends on neither, so this checks the ledger, although the same code frames and converts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import chain, groupby

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME
from windrow.errors import SettingsError, first_line
from windrow.expressions import ColumnMapping
from windrow.formats.format import Format, format_of
from windrow.formats.raw.source import SCHEMA
from windrow.formats.raw.spans import columns_of, narrow_format
from windrow.formats.raw.stage import stage
from windrow.formats.settings import FormatSettings
from windrow.model import tables
from windrow.model.chunks import RAW
from windrow.model.commits import VERSION
from windrow.model.messages import COLUMNS, conform
from windrow.reading.feed import UNREADABLE
from windrow.reading.tables import DepotTable, Ledger, skipped_versions
from windrow.verify.columns import as_messages, identifier
from windrow.verify.depot import DepotMessages, add_messages, find_mapping, rows_added_by
from windrow.verify.parts import PartedRows, divide
from windrow.verify.raw.grammar import Framings
from windrow.verify.snapshot import PARTIAL, RawRows

REJECTED = pa.schema(
    [
        ("id", pa.string()), ("reason", pa.string()), ("raw_source", pa.string()), ("chunk", pa.int64()),
        ("offset", pa.int64()), ("received_at", TIME), ("content", pa.binary()), ("version", pa.int64()),
    ]
)  # fmt: skip
CHUNKS = RAW.append(pa.field("version", pa.int64()))
BYTES = pa.schema([("version", pa.int64()), ("bytes", pa.int64())])
# How versions were read: `[depot.columns]` and `[format]` as the history recorded them (JSON).
Way = tuple[str | None, str | None]


def read_raw_depot(
    table: DepotTable, rows: PartedRows, chunks: PartedRows, first: int, last: int, ledger: Ledger
) -> DepotMessages:
    """Read the versions from `first` to `last` with the mappings and formats that the ledger's history recorded.

    The `chunks` are divided by raw source, and a few sources are formatted at a time. If any version can no longer be
    read, none is, because a record may begin in an earlier version. Raises ExpressionError for a mapping that needs
    Spark, TableUnwritableError for a full disk.
    """
    last = min(last, table.version())
    try:
        for added in chain([CHUNKS.empty_table()], _chunks(table, first, last, skipped_versions(ledger))):
            chunks.add("chunks", added)
    except UNREADABLE:
        return DepotMessages.unread(rows, first, last, "cannot be formatted again, because some can no longer be read")
    chunks.close_blocks()
    beside: list[tuple[pa.Table, ...]] = []

    def messages() -> Iterator[pa.Table]:
        for part in divide([chunks.byte_count], chunks.max_memory_bytes) or [()]:
            formatted, *others = _format_chunks(chunks.read("chunks", part).read_all(), ledger)
            beside.append(tuple(others))
            yield from formatted

    per_version = add_messages(messages(), rows)
    *raw, several = map(pa.concat_tables, zip(*beside, strict=True))
    return DepotMessages(per_version, first, first, last, formatted=RawRows(*raw), several=several)


def _format_chunks(rows: pa.Table, ledger: Ledger) -> tuple[list[pa.Table], pa.Table, pa.Table, pa.Table, pa.Table]:
    """Format all chunks of some raw sources; return messages, tables of `RawRows`, and places of swallowing records."""
    messages, rejected, byte_count = list[pa.Table](), [REJECTED.empty_table()], [BYTES.empty_table()]
    partial, framings = SCHEMA.empty_table(), Framings()
    for (mapping, recorded), versions in _legs(rows, ledger):
        whole = _format(recorded)
        way = find_mapping(columns_of(whole.parser.schema).names, mapping)
        format_, columns = narrow_format(way, whole)
        own = rows.filter(pc.is_in(rows["version"], pa.array(versions, pa.int64())))
        staged = stage(own, partial, format_)
        framings.add(own, partial, staged, format_)
        partial = _after(partial, staged.partial)
        messages.append(_messages(staged.fields, columns, way, ledger.payload))
        rejected.append(_as_rejections(staged.rejects))
        byte_count.append(_bytes(own, decoded=format_.codec != "none"))
    beside = pa.concat_tables(rejected), partial.select(list(PARTIAL)), pa.concat_tables(byte_count)
    return messages, *beside, framings.several(partial)


def _chunks(table: DepotTable, first: int, last: int, without: Collection[int]) -> Iterator[pa.Table]:
    """Yield the rows that versions added, except those in `without`, with `version`."""
    for added in rows_added_by(table, first, last, list(RAW.names), without):
        yield added.select([*RAW.names, VERSION]).rename_columns(CHUNKS.names).cast(CHUNKS)


def _legs(rows: pa.Table, ledger: Ledger) -> Iterator[tuple[Way, list[int]]]:
    """Yield runs of consecutive versions with chunks that were read in the same way.

    A version that the history does not list (a difference) joins the run before it.
    """
    history = ledger.rows("microbatch", "versions, column_mapping, format", "kind = 'data'").to_pylist()
    read = {
        part["version"]: (row["column_mapping"], row["format"]) for row in history for part in row["versions"] or []
    }
    known = sorted(read)

    def way(version: int) -> Way:
        return read[known[max(bisect_right(known, version) - 1, 0)]] if known else (None, None)

    for mapping, versions in groupby(sorted(rows["version"].unique().to_pylist()), way):
        yield mapping, list(versions)


def _format(recorded: str | None) -> Format:
    try:
        return format_of(FormatSettings.of_record(recorded))
    except ValueError as error:
        raise SettingsError(f"the history records a [format] that is not valid: {first_line(error)}") from error


def _after(before: pa.Table, changed: pa.Table) -> pa.Table:
    kept = before.filter(pc.invert(pc.is_in(before["id"], changed["id"].combine_chunks())))
    return pa.concat_tables([kept, changed.filter(pc.invert(pc.fill_null(changed[tables.DELETED], False)))])


def _messages(fields: pa.Table, columns: pa.Schema, mapping: ColumnMapping | None, payload: pa.DataType) -> pa.Table:
    """Return records as messages with `version`."""
    rows = fields.select(columns.names).cast(columns, safe=False)
    if mapping is None:
        messages = conform(rows, payload).select(list(COLUMNS))
    else:
        messages = mapping.apply(rows, payload).read_all()
    return as_messages(messages.append_column("version", fields[VERSION]))


def _as_rejections(rejects: pa.Table) -> pa.Table:
    """Return rejections as the ledger has them: a record's id is its place, and a chunk's id has its version."""
    record = identifier("record", *(rejects[name] for name in ("raw_source", "chunk", "offset")))
    parts = ("arrived_in", "raw_source", "chunk", "ordinal", "reason")
    chunk = identifier("chunk", *(rejects[name] for name in parts))
    ids = pc.if_else(pc.is_valid(rejects["offset"]), record, chunk)
    return rejects.append_column("id", ids).select(REJECTED.names).cast(REJECTED)


def _bytes(rows: pa.Table, *, decoded: bool) -> pa.Table:
    """Count the bytes of versions; NULL where they are decoded before they are counted."""
    size = pc.fill_null(pc.binary_length(rows["bytes"]), 0).cast(pa.int64())
    if decoded:
        size = pa.nulls(rows.num_rows, pa.int64())
    counted = rows.select(["version"]).append_column("bytes", size)
    summed = counted.group_by("version", use_threads=False).aggregate([("bytes", "sum")])
    return summed.rename_columns(BYTES.names).cast(BYTES)

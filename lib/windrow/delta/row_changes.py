"""Read what versions of a table added, changed and removed.

The log says which files each version added, and whether it removed rows. A version that only added rows is read from
its files, so a table needs no change data feed. Other versions are read from the feed, if it was on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSystem

from windrow.columnar.arrow import from_numpy, to_plain_type
from windrow.delta.table import TableSnapshot, beyond_files, history, table_files
from windrow.errors import DepotUnreadableError
from windrow.model.commits import CHANGE, FEED, VERSION

FEED_WAS_OFF = re.compile(r"not have change data enabled|Change Data not enabled for version: (\d+)")  # in delta-rs
FEW_ROWS = 10_000  # faster with one thread than with several
SMALL_BYTES = 4 << 20  # a smaller file is read in one request, a larger one column by column


def has_feed(table: DeltaTable) -> bool:
    """Tell whether the change data feed of a table is on."""
    return table.metadata().configuration.get(FEED) == "true"


def changes(
    table: DeltaTable,
    first: int,
    last: int | None = None,
    columns: Sequence[str] | None = None,
    known: TableSnapshot | None = None,
    skip_unknown: bool = False,
) -> pa.RecordBatchReader:
    """Return the changed rows of versions up to `last` (None: the latest), with `_change_type` and `_commit_version`.

    Reads piece by piece on demand. Without `columns` it has all of the table; `known` remembers what its log says.
    Raises DepotUnreadableError for a version that changed rows while the feed was off, unless `skip_unknown` leaves it
    out; DeltaError for a version that is gone.
    """
    last = table.version() if last is None else min(last, table.version())
    own = pa.schema([(field.name, to_plain_type(field.type)) for field in pa.schema(table.schema().to_arrow())])
    schema = own.append(pa.field(CHANGE, pa.string())).append(pa.field(VERSION, pa.int64()))
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    commits = list(reversed(list(history(table, first, last, files=True, known=known))))
    by_files = len(commits) == max(0, last - first + 1) and not beyond_files(table)  # else the feed says what is wrong
    # guard: only-appends-by-files
    runs = ((changed, list(at)) for changed, at in groupby(commits, itemgetter("removed")))
    parts = (
        _read_changes(table, at, columns, schema, skip_unknown) if changed else _read_added(table, at, schema)
        for changed, at in runs
    )
    batches = chain.from_iterable(parts) if by_files else _feed(table, first, last, columns, schema)
    return pa.RecordBatchReader.from_batches(schema, batches)


def parquet_file(opened: pa.NativeFile, size: int) -> pq.ParquetFile:
    """Return a Parquet file of `size` bytes, a small one read in one request; times of Spark are in microseconds."""
    source = pa.BufferReader(opened.read()) if size <= SMALL_BYTES else opened
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=True)


def row_groups(file: pq.ParquetFile, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file, row group by row group, in the named columns (None: in all)."""
    threads = file.metadata.num_rows > FEW_ROWS
    for group in range(file.num_row_groups):
        yield file.read_row_group(group, names, use_threads=threads)


def without_feed(version: int) -> DepotUnreadableError:
    """Return the error for a version whose changes the change feed did not record."""
    return DepotUnreadableError(
        f"depot version {version} changed rows while the change data feed was off, so its new rows are unknown",
        f"To skip this version and read none of its rows: `windrow run --skip-version {version}`.",
    )


def _read_changes(
    table: DeltaTable, commits: Iterable[dict[str, Any]], columns: Sequence[str] | None, schema: pa.Schema, skip: bool
) -> Iterator[pa.RecordBatch]:
    """Yield what the change feed recorded of versions that changed rows; `skip` those of which it recorded nothing.

    Raises DepotUnreadableError, DeltaError.
    """
    for version in (commit["version"] for commit in commits):
        # guard: feed-was-off
        if has_feed(DeltaTable(table.table_uri, version)):
            yield from _feed(table, version, version, columns, schema)
        elif not skip:
            raise without_feed(version)  # delta-rs would return the rows that the change kept as new ones


def _feed(
    table: DeltaTable, first: int, last: int, columns: Sequence[str] | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield what the change feed recorded of versions. Raises DepotUnreadableError, DeltaError."""
    try:
        feed = table.load_cdf(
            starting_version=first, ending_version=last, columns=None if columns is None else list(columns)
        )
    except DeltaError as error:
        if off := FEED_WAS_OFF.search(str(error)):
            raise without_feed(int(off[1] or first)) from error
        raise
    for batch in pa.RecordBatchReader.from_stream(feed):
        yield batch.select(schema.names).cast(schema)


def _read_added(table: DeltaTable, commits: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files that versions added, in the order of the versions.

    Rows of many small files in succession are converted together if their columns and partition are alike.
    """
    files = [(commit["version"], file) for commit in commits for file in commit["added"] if file["dataChange"]]
    store = table_files(table.table_uri, table, {unquote(file["path"]): file["size"] for _, file in files})
    alike: list[tuple[int, pa.Table]] = []
    count, partition = 0, dict[str, str | None]()
    for version, file in files:
        for rows in _read(store, file, schema.names):
            fits = count < FEW_ROWS and (not alike or rows.schema == alike[-1][1].schema)
            # guard: one-partition-together
            fits = fits and file["partitionValues"] == partition
            if not fits:
                yield from _convert(alike, partition, schema)
                alike, count, partition = [], 0, file["partitionValues"]
            alike.append((version, rows))
            count += rows.num_rows
    yield from _convert(alike, partition, schema)


def _read(store: FileSystem, file: dict[str, Any], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a file, row group by row group, in those of the named columns that it has."""
    with store.open_input_file(unquote(file["path"])) as opened:
        parquet = parquet_file(opened, file["size"])
        kept = set(parquet.schema_arrow.names) - file["partitionValues"].keys()
        yield from row_groups(parquet, [name for name in names if name in kept])


def _convert(
    alike: Sequence[tuple[int, pa.Table]], partition: dict[str, str | None], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield rows of versions, all with the same columns and partition, in the columns of `schema`.

    Columns that the rows lack are NULL.
    """
    if not alike:
        return
    rows = pa.concat_tables([rows for _, rows in alike])
    version = np.repeat([version for version, _ in alike], [rows.num_rows for _, rows in alike])
    known: dict[str, Any] = {VERSION: from_numpy(version), CHANGE: pa.repeat("insert", version.size)}
    known |= {name: rows[name] for name in rows.column_names}
    columns = [
        known[field.name].cast(field.type)
        if field.name in known
        else _repeat(partition.get(field.name), field.type, version.size)
        for field in schema
    ]
    yield from pa.table(columns, schema).combine_chunks().to_batches()


def _repeat(value: str | None, type_: pa.DataType, count: int) -> pa.Array:
    """Return the column of a partition value, which the log has as text; a time without a zone is in UTC."""
    if value is None:
        return pa.nulls(count, type_)
    if value and pa.types.is_timestamp(type_) and type_.tz is not None and not value.endswith("Z"):
        value = f"{value}Z"
    return pa.repeat(pa.scalar(value, pa.string()).cast(type_), count)

"""Read what versions of a table added, changed and removed: from its change data feed, or without one from its files.

Delta records changes of rows only where the feed is on. Without it, versions that only append can still be read: the
log names the files that each of them added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windrow.columnar.arrow import plain_type
from windrow.delta.table import files_in, history
from windrow.errors import DepotUnreadable
from windrow.model.commits import CHANGE, FEED, VERSION

FEED_IS_OFF = "does not have change data enabled"  # what delta-rs says of the first version
SWITCHED_OFF = re.compile(r"Change Data not enabled for version: (\d+)")  # and where it is switched off


def has_feed(table: DeltaTable) -> bool:
    """Tell whether the change data feed of a table is on."""
    return table.metadata().configuration.get(FEED) == "true"


def changes(
    table: DeltaTable, first: int, last: int | None = None, columns: Sequence[str] | None = None
) -> pa.RecordBatchReader:
    """Return the changed rows of versions, with `_change_type` and `_commit_version`; None: up to the latest version.

    Reads piece by piece on demand. Without `columns` it has all of the table, of which the feed adds some. Raises
    DepotUnreadable for a version that changed rows while the feed was off, DeltaError for one that is gone.
    """
    last = table.version() if last is None else last
    wanted = None if columns is None else list(columns)
    beyond = first > table.version()  # there is nothing yet; a version that is gone stays an error
    try:
        found = table.load_cdf(starting_version=first, ending_version=last, columns=wanted, allow_out_of_range=beyond)
        return pa.RecordBatchReader.from_stream(found)
    except DeltaError as error:
        switched_off = SWITCHED_OFF.search(str(error))
        if switched_off is None and FEED_IS_OFF not in str(error):
            raise
    own = pa.schema([(field.name, plain_type(field.type)) for field in pa.schema(table.schema().to_arrow())])
    schema = own.append(pa.field(CHANGE, pa.string())).append(pa.field(VERSION, pa.int64()))
    chosen = schema.names if wanted is None else wanted
    schema = pa.schema([schema.field(name) for name in chosen])
    if switched_off is None:
        return pa.RecordBatchReader.from_batches(schema, _appended(table, first, last, schema))
    at = int(switched_off[1])
    parts = chain(
        *(changes(table, a, b, wanted) for a, b in ((first, at - 1), (at + 1, last)) if a <= b),
        _appended(table, at, at, schema),
    )
    return pa.RecordBatchReader.from_batches(schema, (part.select(schema.names).cast(schema) for part in parts))


def without_feed(version: int) -> DepotUnreadable:
    """Return the error for a version whose changes the change feed did not record."""
    return DepotUnreadable(
        f"depot version {version} changed rows while the change data feed was off, so its new rows are unknown",
        f"To skip this version and read none of its rows: `windrow run --accept {version}`.",
    )


def _appended(table: DeltaTable, first: int, last: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files that versions added, in the order of the versions."""
    for commit in reversed(list(history(table, first, last, files=True))):
        version = commit["version"]
        # guard: only-appends-by-files
        if commit["removed"]:
            raise without_feed(version)
        for file in commit["added"]:
            if file["dataChange"]:
                yield from _rows(table, file, version, schema)


def _rows(table: DeltaTable, file: dict[str, Any], version: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file, in the columns of `schema`; those that it lacks are NULL or in its partition."""
    values = file["partitionValues"] | {CHANGE: "insert", VERSION: str(version)}
    with files_in(table.table_uri).open_input_file(unquote(file["path"])) as opened:
        source = pq.ParquetFile(opened)
        own = [name for name in schema.names if name in source.schema_arrow.names and name not in values]
        for batch in source.iter_batches(columns=own):
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in own
                else pa.repeat(pa.scalar(values.get(field.name)).cast(field.type), batch.num_rows)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

"""What appends added to a depot on a disk of this machine, from the files that its log names.

The change feed says the same of them, but to ask delta-rs for it is to have it list the whole log once more. So of
versions that were followed, of which is known that nothing but files came to the depot, these files are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from windrow.arrow import no_rows, plain, plain_type
from windrow.commits import CHANGE, FEED, VERSION
from windrow.entries import Entry
from windrow.storage import Seen

APPENDS = {"add", "txn", "commitInfo"}
OLDEST_READER = 1  # with later versions of the protocol a file's columns and rows may not be the table's


def appended(depot: Seen, first: int, last: int) -> pa.Table | None:
    """Return the change feed of versions from `first` to `last`, None where it has to be asked for."""
    entries = [entry for entry in depot.since if first <= entry.version <= last]
    if len(entries) < last - first + 1 or not _is_simple(depot.table) or not all(map(_only_appends, entries)):
        return None
    expected = pa.schema(depot.table.schema().to_arrow())
    columns = pa.schema([pa.field(field.name, plain_type(field.type)) for field in expected])
    try:
        parts = [part for entry in entries for part in _parts(depot, entry, columns)]
    except (pa.ArrowException, OSError, KeyError):  # the feed will say what is the matter
        return None
    feed = columns.append(pa.field(CHANGE, pa.string())).append(pa.field(VERSION, pa.uint64()))
    return pa.concat_tables([no_rows(feed), *parts])


def _is_simple(table: DeltaTable) -> bool:
    """Tell whether a file of a table holds its rows and columns as they are, and the feed has them."""
    metadata = table.metadata()
    simple = table.protocol().min_reader_version <= OLDEST_READER and not metadata.partition_columns
    return simple and metadata.configuration.get(FEED) == "true"


def _only_appends(entry: Entry) -> bool:
    return entry.kinds <= APPENDS and all(added["dataChange"] for added in entry.of("add"))


def _parts(depot: Seen, entry: Entry, columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of the files that a version added. Raises ArrowException for those of another type, OSError."""
    for added in entry.of("add"):
        with depot.files.open_input_file(unquote(added["path"])) as opened:
            found = plain(pq.ParquetFile(opened).read())
        count = found.num_rows
        held = {name: found[name] for name in found.column_names}
        rows = [held.get(field.name, pa.nulls(count, field.type)) for field in columns]
        part = pa.table(rows, names=columns.names)
        if part.schema.types != columns.types:
            raise pa.ArrowTypeError(f"{added['path']} has columns of other types")
        part = part.append_column(CHANGE, pa.repeat("insert", count))
        yield part.append_column(VERSION, pa.repeat(pa.scalar(entry.version, pa.uint64()), count))

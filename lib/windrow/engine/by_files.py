"""A ledger by its files, which every engine can read and commit without a JVM, where it lies in reach of delta-rs.

What its live rows are and which files they lie in (`files.py`), refused where files alone do not say it; and one commit
that replaces those files, under the lock of the table. What the driver processed on Spark goes this way as well, to a
plain table on a disk of this machine: it takes a twentieth of the time of a commit by Spark.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from windrow.engine.files import LedgerFiles, Parts
from windrow.engine.lock import commit_lock
from windrow.engine.log import ledger_schema_of, require_ledger
from windrow.engine.protocol import Live, Merged
from windrow.errors import BrokenPromise, LedgerMoved, TableRefused, first_line
from windrow.storage import latest_snapshot, writing

BY_NAME = 2  # the reader version that brought column mapping
HARMLESS = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}  # features that change no file's meaning


def live(location: str, parts: Parts) -> Live:
    """Read the live rows of the ledger at a path; the handle is its files, at the version that the rows are of."""
    files = parts.opened
    snapshot = latest_snapshot(location, "ledger", None if files is None else files.snapshot)
    table = snapshot.table
    if files is None or files.snapshot is not snapshot:
        if "state" not in table.metadata().partition_columns:
            raise TableRefused(f"{location} is a Delta table, but no ledger", "Give the path of a ledger.")
        columns = pa.schema(table.schema().to_arrow())
        schema = ledger_schema_of(columns)
        require_ledger(location, columns.names, schema)
        beyond = beyond_files(table)
        if beyond:
            raise TableRefused(
                f"the ledger at {location} has {beyond}, with which its files alone do not say what its rows are",
                "Run it with --engine spark; a ledger as Windrow makes it has no such feature.",
            )
        files = parts.opened = LedgerFiles(snapshot, schema, parts)
    return Live(files.rows, files, snapshot.version)


def merge(location: str, rows: pa.Table, control: pa.Table, live: Live, note: str) -> Merged:
    """Commit to the ledger at a path what follows from its live rows: Delta's conflict check is the fence."""
    new = pa.concat_tables([rows.drop_columns(["known"]), control])
    files = live.open
    if not isinstance(files, LedgerFiles):
        raise BrokenPromise("the live rows were read by their files")
    with commit_lock(location), writing(location, "ledger"):
        try:
            return files.replace(new, {"userMetadata": note})
        except CommitFailedError as error:
            if DeltaTable(location).version() == live.table_version:
                raise
            raise LedgerMoved(
                f"the ledger moved between prime and commit: {first_line(error)}",
                "Another driver, tick or flush committed first. Nothing was written.",
            ) from error


def beyond_files(table: DeltaTable) -> str:
    """Name the features of a table with which a file's rows are not the table's: deleted beside it, or renamed."""
    protocol = table.protocol()
    if protocol.min_reader_version == BY_NAME:
        return "columnMapping"
    return ", ".join(sorted(set(protocol.reader_features or ()) - HARMLESS))

"""Create a depot, raw depot or ledger at a path with delta-rs, unless it exists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from windrow.delta.locations import local_path
from windrow.delta.lock import commit_lock
from windrow.delta.logfiles import ASIDE
from windrow.delta.table import latest_table, translate_write_errors
from windrow.errors import IncompatibleTableError
from windrow.model import chunks, messages, tables

FIRST = CommitProperties(max_commit_retries=0)  # a second try would commit on top of what another process has created


def create_depot(location: str, payload: pa.DataType | None, retention: str = "90d") -> None:
    """Create an empty depot at a path unless it exists: a raw one without a payload type.

    Raises IncompatibleTableError if a depot of the other kind is there.
    """
    columns, comment = depot_columns(payload)
    properties = tables.PROPERTIES | tables.retention_properties(retention)
    with _creating(location, "depot") as absent:
        if absent:
            DeltaTable.create(location, columns, description=comment, configuration=properties, commit_properties=FIRST)
    require_kind(pa.schema(latest_table(location, "depot").schema().to_arrow()), location, payload is None)


def depot_columns(payload: pa.DataType | None) -> tuple[pa.Schema, str]:
    """Return the columns and the comment of a new depot, a raw one without a payload type."""
    return (chunks.RAW, chunks.COMMENT) if payload is None else (messages.schema(payload), tables.DEPOT_COMMENT)


def require_kind(columns: pa.Schema, location: str, raw: bool) -> None:
    """Raise IncompatibleTableError unless these are the columns of a raw depot (`raw`), or else those of messages."""
    if chunks.is_raw(columns) == raw:
        return
    if raw:
        raise IncompatibleTableError(
            f"the depot at {location} does not hold raw chunks",
            "Use a separate depot for raw files (--depot); it is created if it does not exist.",
        )
    raise IncompatibleTableError(
        f"the depot at {location} holds raw chunks, not messages",
        "Give the format of the files (--format csv, ...), or use a depot of messages (--depot).",
    )


def create_ledger(location: str, first: pa.Table | pa.RecordBatchReader, retention: str) -> None:
    """Create a ledger with its first rows at a path unless it exists."""
    with _creating(location, "ledger") as absent:
        if absent:
            write_deltalake(
                location,
                first.combine_chunks() if isinstance(first, pa.Table) else first,
                mode="error",
                partition_by=list(tables.PARTITIONS),
                description=tables.LEDGER_COMMENT,
                configuration=tables.LEDGER_PROPERTIES | tables.retention_properties(retention),
                commit_properties=FIRST,
            )


@contextmanager
def _creating(location: str, role: str) -> Iterator[bool]:
    """Yield whether to create a table; accept the table of a faster process: the first commit decides.

    Raises IncompatibleTableError, TableLockedError, TableUnwritableError.
    """
    with commit_lock(location), translate_write_errors(location, role):
        absent = not DeltaTable.is_deltatable(location)
        if absent:
            require_empty(location, role)
        try:
            yield absent
        except DeltaError:
            if not DeltaTable.is_deltatable(location):
                raise


def add_columns(location: str, columns: pa.Schema) -> None:
    """Add columns to the table at a path unless it has them; they are NULL in all existing rows."""
    with translate_write_errors(location, "ledger"):
        table = DeltaTable(location)
        known = set(pa.schema(table.schema().to_arrow()).names)
        added = [field for field in columns if field.name not in known]
        if added:
            table.alter.add_columns(list(Schema.from_arrow(pa.schema(added)).fields))


def require_empty(location: str, role: str) -> None:
    """Raise IncompatibleTableError for a directory with other files, which a VACUUM of the table would remove.

    Files of an interrupted creation are accepted. A table that lost its log is refused too: a new table over its files
    would silently ignore its content.
    """
    ours = ("_delta_log", ASIDE, *([f"state={tables.PROGRESS}"] if role == "ledger" else []))
    path = local_path(location)
    if path is None or not path.is_dir():
        return
    others = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".") and entry.name not in ours)
    # guard: no-table-over-files
    if others:
        raise IncompatibleTableError(
            f"{location} is not a Delta table, and not empty: it holds {others[0]}",
            f"Use an empty directory for the {role}; if the table was there before, restore its _delta_log.",
        )

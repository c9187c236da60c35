"""Tables made with delta-rs at a path: depot, raw depot and ledger, each unless it exists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from windrow.delta.locations import local_path
from windrow.delta.lock import commit_lock
from windrow.delta.logfiles import ASIDE
from windrow.delta.table import latest_table, writing
from windrow.errors import TableRefused
from windrow.model import chunks, tables

FIRST = CommitProperties(max_commit_retries=0)  # a second try would commit on top of what another process has created


def create_depot(location: str, payload: pa.DataType, keep: str = "90d") -> None:
    """Create an empty depot at a path unless it exists. Raises TableRefused for a raw one."""
    _create_depot(location, tables.depot_schema(payload), tables.DEPOT_COMMENT, keep)
    require_messages(pa.schema(latest_table(location, "depot").schema().to_arrow()), location)


def create_raw_depot(location: str, keep: str = "90d") -> None:
    """Create an empty raw depot at a path unless it exists. Raises TableRefused for a depot of something else."""
    _create_depot(location, chunks.RAW, chunks.COMMENT, keep)
    require_raw(pa.schema(latest_table(location, "depot").schema().to_arrow()), location)


def _create_depot(location: str, columns: pa.Schema, comment: str, keep: str) -> None:
    """Create a table without rows at a path unless it exists."""
    with commit_lock(location), writing(location, "depot"):
        if DeltaTable.is_deltatable(location):
            return
        require_empty(location, "depot")
        properties = tables.PROPERTIES | tables.retention(keep)
        with _race(location):
            DeltaTable.create(location, columns, description=comment, configuration=properties, commit_properties=FIRST)


def require_messages(columns: pa.Schema, location: str) -> None:
    """Raise TableRefused for the columns of a raw depot."""
    if chunks.is_raw(columns):
        raise TableRefused(
            f"the depot at {location} holds raw chunks, no messages",
            "Say of which format its files are (--format csv, ...), or name a depot of messages (--depot).",
        )


def require_raw(columns: pa.Schema, location: str) -> None:
    """Raise TableRefused for other columns than those of a raw depot."""
    if not chunks.is_raw(columns):
        raise TableRefused(
            f"the depot at {location} does not hold raw chunks",
            "Give raw files a depot of their own (--depot); it is made when there is none.",
        )


def create_ledger(location: str, first: pa.Table | pa.RecordBatchReader, keep: str) -> None:
    """Create a ledger with its first rows at a path unless it exists."""
    with commit_lock(location), writing(location, "ledger"):
        if DeltaTable.is_deltatable(location):
            return
        require_empty(location, "ledger")
        with _race(location):
            write_deltalake(
                location,
                first.combine_chunks() if isinstance(first, pa.Table) else first,
                mode="error",
                partition_by=["state"],
                description=tables.LEDGER_COMMENT,
                configuration=tables.PROPERTIES | tables.retention(keep),
                commit_properties=FIRST,
            )


@contextmanager
def _race(location: str) -> Iterator[None]:
    """Create a table, or leave it to who was faster: where there is no lock the first commit decides."""
    try:
        yield
    except DeltaError:
        if not DeltaTable.is_deltatable(location):
            raise


def add_columns(location: str, columns: pa.Schema) -> None:
    """Add columns to the table at a path, NULL in all rows that there are, unless it has them."""
    with writing(location, "ledger"):
        table = DeltaTable(location)
        known = set(pa.schema(table.schema().to_arrow()).names)
        added = [field for field in columns if field.name not in known]
        if added:
            table.alter.add_columns(list(Schema.from_arrow(pa.schema(added)).fields))


def require_empty(location: str, role: str) -> None:
    """Refuse to make a table among files that are not its own, which a clean-up of the table would remove.

    What a creation leaves that was interrupted is none. A table that lost its log is refused as well: to begin anew
    over its files would pass in silence over what it held.
    """
    ours = ("_delta_log", ASIDE, *([f"state={tables.PROGRESS}"] if role == "ledger" else []))
    path = local_path(location)
    if path is None or not path.is_dir():
        return
    others = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".") and entry.name not in ours)
    # guard: no-table-over-files
    if others:
        raise TableRefused(
            f"{location} is no Delta table, and not empty: it holds {others[0]}",
            f"Give the {role} a directory of its own; if it was there before, bring back its _delta_log.",
        )

"""Read the unchanged rows of a depot without messages, which topologies can use as input.

If the depot is the ledger of a batcher, its rows are the closed batches, each in the version that closed it. Such rows
move no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import no_rows, text, where
from windrow.engine.slices import ArrowSlice, refuse_changes, version_of
from windrow.model import tables
from windrow.model.commits import FEED_COLUMNS, VERSION
from windrow.model.messages import SUMMARY

LEDGER_COLUMNS = {"id", "state", "token", "schema_version", "microbatch"}


class RowsSlice(ArrowSlice):
    """Whole depot versions as one Arrow table of rows that are not messages, with `version` or the feed's column."""

    __slots__ = ()

    def summarise(self, latest: int) -> pa.Table:
        """Return how many rows each version has: there are no sources among them."""
        versions = pa.table({"version": version_of(self.messages)})
        return summary_of(versions.group_by("version").aggregate([([], "count_all")]))

    def streams(self) -> None:
        """Return None: such rows belong to no stream."""


def summary_of(counted: pa.Table) -> pa.Table:
    """Return `messages.summarise` of rows without sources, from their versions and how many rows each has."""
    versions, rows = counted.columns
    columns = {"version": versions, "messages": rows}
    filled = [columns.get(field.name, pa.nulls(counted.num_rows, field.type)) for field in SUMMARY]
    return pa.table(filled, SUMMARY).sort_by("version")


def is_ledger(columns: pa.Schema) -> bool:
    """Tell whether a table is the ledger of a batcher."""
    return set(columns.names) >= LEDGER_COLUMNS and not tables.is_of_topology(columns.names)


def rows_of(feed: pa.Table, inserted: pa.ChunkedArray, on_depot_delete: str) -> pa.Table:
    """Return the new rows of a change feed (of a ledger, its closed batches), each with its depot `version`.

    If the table has a column `version`, the depot version keeps the feed's column name instead.
    Raises DepotChanged for deletions and updates in other tables, unless `on_depot_delete` is `ignore`.
    """
    ledger = is_ledger(feed.schema)
    if on_depot_delete == "error" and not ledger:
        refuse_changes(feed.filter(pc.invert(inserted)))
    kept = where(feed, pc.and_(inserted, pc.equal(feed["state"], text("closed"))) if ledger else inserted)
    version = kept[VERSION].cast(pa.int64())
    rows = kept.drop_columns([name for name in FEED_COLUMNS if name in kept.column_names])
    rows = rows.select(tables.BATCH) if ledger else rows
    return rows.append_column(version_name(rows.column_names), version)


def version_name(columns: Iterable[str]) -> str:
    """Return the name of the column with the depot version, beside these columns."""
    return VERSION if "version" in map(str.lower, columns) else "version"  # Spark ignores the case of names


def no_rows_of(columns: pa.Schema) -> pa.Table:
    """Return an empty table as `rows_of` returns it for a depot with these columns."""
    kept = pa.schema([columns.field(name) for name in tables.BATCH]) if is_ledger(columns) else columns
    return no_rows(kept.append(pa.field(version_name(kept.names), pa.int64())))

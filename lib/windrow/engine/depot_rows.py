"""Rows of a depot that holds no messages, as they are: what topologies read beside messages.

Of the ledger of a batcher these are its closed batches, each in the version that closed it. They move no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import text, where
from windrow.engine.slices import refuse_changes
from windrow.model import tables
from windrow.model.commits import FEED_COLUMNS, VERSION
from windrow.model.messages import SUMMARY

LEDGER_COLUMNS = {"id", "state", "token", "schema_version", "microbatch"}


@dataclass(frozen=True, slots=True)
class RowsSlice:
    """Whole depot versions as one Arrow table of rows with `version`, or as `version_of` says."""

    rows: pa.Table
    expected: Mapping[int, int | None]
    path: str = "driver"
    volume: None = None

    def formatted(self, partial: pa.Table) -> RowsSlice:
        """Return itself."""
        return self

    def summarise(self, latest: int) -> pa.Table:
        """Return how many rows each version has: there are no sources among them."""
        versions = pa.table({"version": version_of(self.rows)})
        counted = versions.group_by("version").aggregate([([], "count_all")]).sort_by("version")
        columns = {"version": counted["version"], "messages": counted["count_all"]}
        filled = [columns.get(field.name, pa.nulls(counted.num_rows, field.type)) for field in SUMMARY]
        return pa.table(filled, SUMMARY)

    def streams(self) -> None:
        """Tell that there are none."""

    def table(self) -> pa.Table:
        """Return the rows."""
        return self.rows

    def beside(self, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
        """Return that nothing of them goes to the ledger as it is."""
        return []


def is_ledger(columns: pa.Schema) -> bool:
    """Tell whether a table is the ledger of a batcher."""
    return set(columns.names) >= LEDGER_COLUMNS and not tables.is_of_topology(columns.names)


def rows_of(feed: pa.Table, inserted: pa.ChunkedArray, on_depot_delete: str) -> pa.Table:
    """Return those rows of a change feed that came, of a ledger its closed batches, each with its depot `version`.

    Of a table with a column `version` of its own that one stays, and the depot's keeps the name of the feed.
    Raises DepotChanged for deletions and updates of other tables, unless `on_depot_delete` is `ignore`.
    """
    ledger = is_ledger(feed.schema)
    if on_depot_delete == "error" and not ledger:
        refuse_changes(feed.filter(pc.invert(inserted)))
    kept = where(feed, pc.and_(inserted, pc.equal(feed["state"], text("closed"))) if ledger else inserted)
    version = kept[VERSION].cast(pa.int64())
    rows = kept.drop_columns([name for name in FEED_COLUMNS if name in kept.column_names])
    rows = rows.select(tables.BATCH) if ledger else rows
    taken = "version" in map(str.lower, rows.column_names)  # as Spark tells names apart
    return rows.append_column(VERSION if taken else "version", version)


def version_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return from which depot version each of some rows, messages or chunks came."""
    return rows[VERSION if VERSION in rows.column_names else "version"]


def cut_rows(rows: pa.Table, counts: Mapping[int, int | None], versions: list[int]) -> RowsSlice:
    """Return the slice of the given versions."""
    mask = pc.is_in(version_of(rows), pa.array(versions, pa.int64()))
    return RowsSlice(where(rows, mask), {version: counts[version] for version in versions})

"""Read the rows of a depot without messages, which topologies can use as input.

If the depot is the ledger of a batcher, its rows are the closed batches, each in the version that closed it. If it has
the states of a topology, its rows are what each version changed in one state: a ledger only grows, so these are the
rows that the version added. None of these rows moves a clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import empty_table, filter_rows, string_scalar
from windrow.errors import DepotChangedError
from windrow.model import tables
from windrow.model.commits import FEED_COLUMNS, VERSION
from windrow.source.depot_changes import refuse_changes, refuse_set_back
from windrow.source.text import require_text

MIGRATED = "Begin a new table of states, with start_from at the migration of this state."
LEDGER_COLUMNS = {"id", "state", "token", "schema_version", "microbatch"}


@dataclass(frozen=True, slots=True)
class StateChanges:
    """The state of a topology whose changes are read, its columns, and which of them are its key.

    A row has its values under the names of the version of the state that wrote it: `count`, or `count@2`.
    """

    state: str
    columns: pa.Schema
    keys: tuple[str, ...] | None = None  # None: the table was written when keys were not recorded

    def stored_names(self, column: str, table: Iterable[str]) -> list[str]:
        """Return the names that a column of the state has had in a table, the latest one first."""
        named = [name for name in table if name == column or name.rpartition(tables.OF_VERSION)[0] == column]
        return sorted(named, key=lambda name: int(name[len(column) + 1 :] or 1), reverse=True)

    def require_key(self, rules: Iterable[str | None]) -> None:
        """Raise DepotChangedError if rows were written under settings in which the state had another key."""
        for settings in rules:
            keys = json.loads(settings or "{}").get("keys", {}).get(self.state)
            # guard: rows-of-another-key
            if keys is not None and self.keys is not None and tuple(keys) != self.keys:
                raise DepotChangedError(
                    f"the key of the state {self.state} is ({', '.join(self.keys)}), but some of its rows have "
                    f"({', '.join(keys)})",
                    MIGRATED,
                )


def is_ledger(columns: pa.Schema) -> bool:
    """Tell whether a table is the ledger of a batcher."""
    return set(columns.names) >= LEDGER_COLUMNS and not tables.is_topology_ledger(columns.names)


def has_states(columns: pa.Schema) -> bool:
    """Tell whether a table has the states of a topology."""
    return set(columns.names) >= LEDGER_COLUMNS and tables.is_topology_ledger(columns.names)


def rows_of(feed: pa.Table, inserted: pa.ChunkedArray, on_depot_change: str, state: StateChanges | None) -> pa.Table:
    """Return the new rows of a change feed, each with its depot `version`: from a ledger, closed batches or a `state`.

    If the table has a column `version`, the depot version keeps the feed's column name instead. Raises
    DepotChangedError for deletions and updates in other tables, and for a ledger that was set back, unless
    `on_depot_change` is `ignore`; for a table of states after a RESTORE in any case. Raises DepotUnreadableError for
    text that is not UTF-8.
    """
    ledger = state is not None or is_ledger(feed.schema)
    if ledger:
        refuse_set_back(_set_back(feed, inserted, state is not None, on_depot_change), on_depot_change == "error")
    elif on_depot_change == "error":
        refuse_changes(feed.filter(pc.invert(inserted)))
    rows = _of_depot(feed, inserted, ledger) if state is None else _changes(filter_rows(feed, inserted), state)
    # guard: rows-are-text
    require_text(rows, rows.column_names[-1])
    return rows


def _of_depot(feed: pa.Table, inserted: pa.ChunkedArray, ledger: bool) -> pa.Table:
    """Return the new rows of a depot, or a ledger's closed batches."""
    kept = filter_rows(
        feed, pc.and_(inserted, pc.equal(feed["state"], string_scalar("closed"))) if ledger else inserted
    )
    version = kept[VERSION].cast(pa.int64())
    rows = kept.drop_columns([name for name in FEED_COLUMNS if name in kept.column_names])
    rows = rows.select(tables.BATCH_COLUMNS) if ledger else rows
    return rows.append_column(version_name(rows.column_names), version)


def _changes(added: pa.Table, state: StateChanges) -> pa.Table:
    """Return the rows of a state that versions added, by version and key; a deleted row has its last values."""
    state.require_key(
        filter_rows(added, pc.equal(added["state"], string_scalar("microbatch")))["rules"].unique().to_pylist()
    )
    own = added.filter(pc.equal(added["state"], string_scalar(state.state)))
    rows = own.sort_by([(VERSION, "ascending"), ("id", "ascending")])
    columns = [_of_any_version(rows, state, field) for field in state.columns]
    result = pa.Table.from_arrays(columns, schema=state.columns)
    result = result.append_column(tables.DELETED, pc.fill_null(rows[tables.DELETED], False))
    return result.append_column(version_name(result.column_names), rows[VERSION].cast(pa.int64()))


def _of_any_version(rows: pa.Table, state: StateChanges, field: pa.Field) -> pa.Array:
    """Return a column of a state, whichever version of the state wrote a row. Raises DepotChangedError."""
    try:
        columns = [
            rows[name].combine_chunks().cast(field.type) for name in state.stored_names(field.name, rows.column_names)
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DepotChangedError(
            f"the column {field.name!r} of the state {state.state} had values of another type: {error}", MIGRATED
        ) from error
    matching, count = columns[0], rows.num_rows
    for other in columns[1:]:
        at = pc.if_else(pc.is_valid(matching), np.arange(count), np.arange(count, 2 * count))
        matching = pa.concat_arrays([matching, other]).take(at)
    return matching


def _set_back(feed: pa.Table, inserted: pa.ChunkedArray, of_state: bool, on_depot_change: str) -> pa.Table:
    """Return the microbatches that a ledger lost in a RESTORE, and its rollbacks.

    With `ignore` both are read, but nothing records what a RESTORE changed in a state.
    """
    microbatches = pc.equal(feed["state"], string_scalar("microbatch"))
    back = pc.invert(inserted)
    if on_depot_change == "error":
        back = pc.or_kleene(back, pc.equal(feed["kind"], string_scalar("rollback")))
    elif not of_state:
        return feed.slice(0, 0)
    return feed.filter(pc.and_(microbatches, pc.fill_null(back, False)))


def version_name(columns: Iterable[str]) -> str:
    """Return the name of the column with the depot version, beside these columns."""
    return VERSION if "version" in map(str.lower, columns) else "version"  # Spark ignores the case of names


def no_rows_of(columns: pa.Schema, state: StateChanges | None) -> pa.Table:
    """Return an empty table as `rows_of` returns it for a depot with these columns."""
    if state is not None:
        kept = state.columns.append(pa.field(tables.DELETED, pa.bool_()))
    else:
        kept = pa.schema(
            [columns.field(name) for name in (tables.BATCH_COLUMNS if is_ledger(columns) else columns.names)]
        )
    return empty_table(kept.append(pa.field(version_name(kept.names), pa.int64())))

"""The live rows of a ledger, all of one table version: those in memory, and those that are read on demand."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import filter_rows, from_numpy, string_array, string_scalar
from windrow.ledger.versions import Fold, Growth
from windrow.model import messages as message_columns
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.id_filter import IdFilter
from windrow.model.messages import microseconds
from windrow.model.open_batches import BatchFilter, OpenBatchTotals
from windrow.model.tables import FILLED_HEADER, REQUIRED_COLUMNS, require_filled


class Due(NamedTuple):
    """Rows of a state that are due, and when the next other row is due (microseconds); None if there is none."""

    rows: pa.Table
    next: int | None


class OpenRows(Protocol):
    """Open batches, unfinished raw records, or the states of a topology, at one version of the ledger.

    They are read on demand.
    """

    def batches(self, batch_filter: BatchFilter | None) -> pa.Table:
        """Return the open batches that match, with messages for those that can change; None: all, with messages.

        The result may contain other batches, and other messages too.
        """

    def needed_messages(self, batch_filter: BatchFilter) -> int:
        """Count the messages of the open batches that can change, or more if that takes less time."""

    def of_state(self, state: str, columns: pa.Schema, id_filter: IdFilter | None = None) -> pa.Table:
        """Return the rows of a state: all, or those that match and perhaps others."""

    def due(self, state: str, columns: pa.Schema, until: int) -> Due:
        """Return the rows of a topology's state that are due at a time (microseconds), and when the next one is."""
        return due_among(self.of_state(state, columns), until)

    def passed_window_ends(self, passed: Floors) -> Floors:
        """Return, by source, the last end of an open window that the source's clock has passed."""


def due_among(rows: pa.Table, until: int) -> Due:
    """Return which rows of a state are due at a time (microseconds), and when the next one is."""
    due = rows["due"].cast(pa.int64())
    later = pc.greater(due, until)
    return Due(filter_rows(rows, pc.invert(later)), pc.min(due.filter(later)).as_py())


@dataclass(frozen=True, slots=True)
class LoadedRows(OpenRows):
    """Open rows that are already in memory; unfinished raw records may be separate, in `partial`."""

    rows: pa.Table
    partial: pa.Table | None = None

    def batches(self, batch_filter: BatchFilter | None) -> pa.Table:
        """Return all open batches."""
        return self.rows

    def needed_messages(self, batch_filter: BatchFilter) -> int:
        """Count the messages of all open batches."""
        return int(pc.sum(self.rows["message_count"]).as_py() or 0)

    def of_state(self, state: str, columns: pa.Schema, id_filter: IdFilter | None = None) -> pa.Table:
        """Return the rows of a state, all or those that match."""
        state_rows = self.partial if state == tables.PARTIAL and self.partial is not None else self.rows
        rows = state_rows.filter(pc.equal(state_rows["state"], string_scalar(state))).select(["id", *columns.names])
        return rows if id_filter is None else id_filter.among(rows)

    def passed_window_ends(self, passed: Floors) -> Floors:
        """Return, by source, the last end of an open window that the source's clock has passed."""
        return last_window_ends(self.rows, passed)


def last_window_ends(batches: pa.Table, passed: Floors) -> Floors:
    """Return, by source, the last end of a window of these batches that the source's clock has passed."""
    source, end = batches["source"].combine_chunks(), microseconds(batches["window_end"])
    rows = np.flatnonzero(end <= passed.of(source))
    return Floors.empty().raised(source.take(from_numpy(rows)), end[rows])


@dataclass(frozen=True)
class Live:
    """The live rows of the ledger, all of one table version.

    `rows` are the control rows, which every microbatch needs, in their own columns; `open` reads the rest on demand.
    `schema` has all columns of the ledger. `growth` says how many versions were written to the table and are obsolete.
    """

    schema: pa.Schema
    rows: pa.Table
    open: OpenRows
    table_version: int
    growth: Growth = field(default_factory=Growth)

    @property
    def revision(self) -> int:
        """Return the number of the commit that wrote the table version."""
        progress = self.rows.filter(pc.equal(self.rows["id"], string_scalar(tables.PROGRESS)))
        return int(pc.max(progress["revision"]).as_py() or 0)

    def due_fold(self, after_commits: int, after_rows: int, takes_all: bool) -> Fold | None:
        """Return which fold is due, as `Growth.fold` decides."""
        return self.growth.fold(after_commits, after_rows, self.totals.total[1], takes_all)

    @cached_property
    def totals(self) -> OpenBatchTotals:
        """Return the totals of the open batches by source; none in the ledger of a topology."""
        if tables.is_topology_ledger(self.schema.names):
            return OpenBatchTotals.none()
        state, id_ = self.rows["state"], self.rows["id"]
        is_source = pc.and_(
            pc.equal(state, string_scalar("progress")), pc.not_equal(id_, string_scalar(tables.PROGRESS))
        )
        return OpenBatchTotals.of(filter_rows(self.rows, is_source))

    def batches(self, batch_filter: BatchFilter | None) -> pa.Table:
        """Read the open batches that match, with messages for those that can change; None: all, with messages.

        Raises IncompatibleTableError for damaged batches.
        """
        rows = self.open.batches(batch_filter)
        require_filled(rows, REQUIRED_COLUMNS if batch_filter is None else FILLED_HEADER)
        return rows

    def partial(self, depot: str | None, sources: pa.Array | None = None) -> pa.Table:
        """Read the unfinished bytes of some raw sources of a depot, or of all sources of all depots; see `IdFilter`."""
        columns = tables.partial_schema(self.schema)
        id_filter = None if sources is None else IdFilter.of_raw_sources(sources, depot)
        rows = self.open.of_state(tables.PARTIAL, columns, id_filter)
        return rows.append_column("state", pa.repeat(string_scalar(tables.PARTIAL), rows.num_rows))

    @classmethod
    def of_rows(cls, rows: pa.Table, table_version: int) -> Live:
        """Return live rows that are all in memory."""
        control = pc.is_in(rows["state"], string_array(tables.PRIMED))
        own = rows.filter(control).select(tables.control_schema(rows.schema).names)
        is_partial = pc.equal(rows["state"], string_scalar(tables.PARTIAL))
        contents = LoadedRows(rows.filter(pc.invert(pc.or_(control, is_partial))), rows.filter(is_partial))
        return cls(rows.schema, own, contents, table_version)


def no_messages(schema: pa.Schema) -> pa.Table:
    """Return an empty table of messages with their version, in the types of a ledger."""
    columns = message_columns.schema(schema.field("payload").type)
    return columns.append(pa.field("version", pa.int64())).empty_table()

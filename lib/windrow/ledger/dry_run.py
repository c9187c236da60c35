"""The ledger of a dry run: read from its table, but changed only in memory.

A dry run does everything that a run does, one microbatch after another, but keeps the live rows in memory and leaves
the tables unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from windrow.columnar.arrow import conform, to_plain_types
from windrow.delta.log import TableInfo
from windrow.errors import EngineUnavailableError
from windrow.ledger.ledger import Ledger
from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.versions import Fold, latest, rows_to_write
from windrow.model import tables
from windrow.model.payload import of_column
from windrow.model.tables import CHANGED

if TYPE_CHECKING:
    from windrow.engine.spark.engine import SparkEngine
    from windrow.ledger.open_batches import SparkOpen


class DryRunLedger(Ledger):
    """A copy of a ledger in memory, or a new one."""

    def __init__(self, ledger: Ledger) -> None:
        """Read `ledger`. Raises EngineUnavailableError if another process would run the microbatches."""
        if ledger.engine.remote:
            raise EngineUnavailableError(
                "a dry run needs Spark in this process, not Spark Connect",
                "Use a classic session, or --engine embedded.",
            )
        super().__init__(ledger.engine, ledger.settings)
        self._ledger, self.commit_mode = ledger, ledger.commit_mode
        self._live: pa.Table | None = None

    @property
    def engine_name(self) -> str:
        """Return the name of the engine, marked as a dry run."""
        return f"{self.engine.name} (dry run)"

    def table(self) -> TableInfo | None:
        """Return the identity of the ledger that was read; a new one in memory has version 0 and no id."""
        known = self._ledger.table()
        if known is not None or self._live is None:
            return known
        return TableInfo("", 0, self._live.schema, of_column(self._live.schema), has_change_feed=False)

    def repair(self, depots: Iterable[str]) -> None:
        """Mend nothing."""

    def create(self, first: pa.Table, retention: str) -> None:
        """Keep the first rows in memory."""
        self._live = first

    def add_columns(self, columns: pa.Schema) -> None:
        """Add nothing: only topologies add columns, and they have no dry run."""

    def live(self) -> Live:
        """Return the live rows after the microbatches so far."""
        return Live.of_rows(self._rows(), 0)

    def _rows(self) -> pa.Table:
        if self._live is None:
            live = self._ledger.live()
            rows = [live.rows, live.partial(None)] if "content" in live.schema.names else [live.rows]
            self._live = pa.concat_tables([*(conform(row, live.schema) for row in rows), live.open.batches(None)])
        return self._live

    def commit(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> None:
        """Apply the rows to the live rows in memory."""
        rows = processed.rows
        if not isinstance(rows, pa.Table):  # the rows of a Spark frame that are live or replace live rows
            rows = to_plain_types(rows.where(f"{CHANGED} AND (known OR {tables.ARE_LIVE})").toArrow()).drop_columns(
                [CHANGED]
            )
        rows = rows.select([*control.schema.names, "known"])
        rows = rows.cast(control.schema.append(pa.field("known", pa.bool_())))
        new = pa.concat_tables([rows_to_write(table, live.revision + 1) for table in (rows, control)])
        both = pa.concat_tables([self._rows(), new.filter(tables.is_live(new["state"]))])
        self._live = latest(both).combine_chunks()

    def open_on_executors(self, live: Live) -> SparkOpen:
        """Return the open batches in memory, for Spark to read."""
        from windrow.ledger.open_batches import SparkOpen

        return SparkOpen(cast("SparkEngine", self.engine), "", 0, live.schema, live.open.batches(None))

    def fold(self, live: Live, fold: Fold) -> None:
        """Drop nothing: memory has only rows that count."""

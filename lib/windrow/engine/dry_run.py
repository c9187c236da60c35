"""The engine of a dry run: it reads the tables and commits to memory.

A dry run does everything that a run does, one microbatch after another, but keeps the live rows in memory and leaves
the tables unchanged.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.delta.log import Table
from windrow.engine.protocol import Engine
from windrow.errors import EngineUnavailable
from windrow.ledger.live import Live
from windrow.ledger.result import CommitCounts, MicrobatchResult
from windrow.model import tables


class DryRunEngine:
    """Wraps an engine: reads pass through, commits stay in memory."""

    def __init__(self, engine: Engine) -> None:
        """Read with `engine`. Raises EngineUnavailable if another process would do the reading."""
        if getattr(engine, "remote", False):
            raise EngineUnavailable(
                "a dry run needs Spark in this process, not Spark Connect",
                "Use a classic session, or --engine embedded.",
            )
        self._engine, self.name = engine, f"{engine.name} (dry run)"
        self._live: pa.Table | None = None

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the engine."""
        return getattr(self._engine, name)

    def mend(self) -> None:
        """Mend nothing."""

    def ledger(self) -> Table | None:
        """Return the ledger's identity, or the depot's for a ledger that exists only in memory."""
        return self._engine.ledger() if self._live is None else self._engine.depot()

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Keep the first rows in memory."""
        self._live = first

    def add_columns(self, columns: pa.Schema) -> None:
        """Add nothing: only topologies add columns, and they have no dry run."""

    def create_views(self, missing: bool = False) -> list[str]:
        """Create nothing."""
        return []

    def live(self) -> Live:
        """Return the live rows after the microbatches so far."""
        if self._live is None:
            live = self._engine.live()
            self._live = pa.concat_tables([live.rows, live.open.wanted(None)])
        return Live.held(self._live, 0)

    def commit_result(
        self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str
    ) -> CommitCounts | None:
        """Apply the rows to the live rows in memory."""
        rows = processed.rows
        if isinstance(rows, pa.Table):
            written = rows
        else:  # the rows of a Spark frame that are live or replace live rows
            written = plain(rows.where(f"known OR {tables.live_states(rows.columns)}").toArrow())
        written = pa.concat_tables([written.select(control.schema.names).cast(control.schema), control])
        before = self._live if self._live is not None else self.live().rows
        kept = before.filter(pc.invert(pc.is_in(before["id"], written["id"].combine_chunks())))
        still = written.filter(tables.are_live(written["state"], written.column_names))
        self._live = pa.concat_tables([kept, still]).combine_chunks()
        return None

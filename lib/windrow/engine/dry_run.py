"""A dry run: an engine that reads the tables and commits to memory.

Everything of a run happens as it would, microbatch after microbatch, over live rows that are kept here; the tables stay
as they are.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.delta.log import Table
from windrow.engine.protocol import Engine, Live, Merged
from windrow.engine.result import MicrobatchResult, Rows
from windrow.errors import EngineUnavailable
from windrow.model import tables


class DryRunEngine:
    """Another engine, of which nothing reaches the tables: what would be written stays here."""

    def __init__(self, engine: Engine) -> None:
        """Read with `engine`. Raises EngineUnavailable where reading happens in a process with a memory of its own."""
        if getattr(engine, "remote", False):
            raise EngineUnavailable(
                "a dry run needs Spark in this process, not Spark Connect",
                "Use a classic session, or --engine embedded.",
            )
        self._engine, self.name = engine, f"{engine.name} (dry run)"
        self._live: pa.Table | None = None

    def __getattr__(self, name: str) -> Any:
        """Return what the engine has: it reads, processes and says how it would commit."""
        return getattr(self._engine, name)

    def mend(self) -> None:
        """Mend nothing."""

    def ledger(self) -> Table | None:
        """Return the ledger's identity; the depot's stands for one that was made here."""
        return self._engine.ledger() if self._live is None else self._engine.depot()

    def create_ledger(self, first: pa.Table, keep: str) -> None:
        """Begin with these rows."""
        self._live = first

    def add_columns(self, columns: pa.Schema) -> None:
        """Add nothing: only topologies have new columns, and these are not rehearsed."""

    def create_views(self, missing: bool = False) -> list[str]:
        """Make nothing."""
        return []

    def live(self) -> Live:
        """Return the live rows as the microbatches so far would have left them."""
        if self._live is None:
            live = self._engine.live()
            self._live = pa.concat_tables([live.rows, live.open.wanted(None)])
        return Live.held(self._live, 0)

    def merge(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> Merged | None:
        """Keep what would be live."""
        rows = processed.rows
        written = rows if isinstance(rows, pa.Table) else _live_part(rows)
        written = pa.concat_tables([written.select(control.schema.names).cast(control.schema), control])
        before = self._live if self._live is not None else self.live().rows
        kept = before.filter(pc.invert(pc.is_in(before["id"], written["id"].combine_chunks())))
        still = written.filter(tables.are_live(written["state"], written.column_names))
        self._live = pa.concat_tables([kept, still]).combine_chunks()
        return None


def _live_part(rows: Rows) -> pa.Table:
    """Return of a Spark frame the rows that are live or were."""
    return plain(rows.where(f"known OR {tables.live_states(rows.columns)}").toArrow())

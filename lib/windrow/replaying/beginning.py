"""How the ledger of a replay begins: empty, where the other one began, or as a copy of what the other one was."""

from __future__ import annotations

import pyarrow as pa

from windrow.columnar.arrow import plain
from windrow.delta.creation import create_ledger
from windrow.delta.table import scanned
from windrow.engine.protocol import Engine
from windrow.errors import TableRefused
from windrow.model import tables
from windrow.reading.delta import Ledger
from windrow.replaying.span import Span
from windrow.runtime.progress import Reached, first_rows


def begin(engine: Engine, into: str, span: Span, rules: str, keep: str) -> None:
    """Make the ledger of a replay. Raises TableRefused where there is one already, or anything else."""
    if engine.ledger() is not None:
        raise TableRefused(f"there is a ledger at {into} already", "Name a place for a new one (--into).")
    if span.begin is None:
        engine.create_ledger(_first(engine, span, rules), keep)
    else:
        with scanned(span.begin.table) as found:
            create_ledger(into, _copied(span.begin, found), keep)


def _first(engine: Engine, span: Span, rules: str) -> pa.Table:
    """Return the first row of a ledger that begins where the other one began.

    Where that was told by time or by counting, the first version with messages is named: the same messages follow.
    """
    start_from = span.end.progress().start_from
    if start_from != "beginning":
        start_from = f"version:{span.first}"
    reached = -1 if start_from == "beginning" else span.first - 1
    depot = engine.depot()
    schema = tables.ledger_schema(depot.payload, raw=depot.raw)
    return first_rows(schema, {None: Reached(depot.id, start_from, reached, None)}, rules)


def _copied(ledger: Ledger, found: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return the rows of a ledger as a new one takes them, piece by piece."""
    schema = tables.ledger_schema(ledger.payload, raw=ledger.raw)
    pieces = (rows for piece in found for rows in plain(pa.table(piece)).select(schema.names).cast(schema).to_batches())
    return pa.RecordBatchReader.from_batches(schema, pieces)

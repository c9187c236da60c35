"""Create the ledger of a replay: empty, or as a copy of the original ledger at the start of the replayed part."""

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
    """Create the ledger of a replay. Raises TableRefused if something is there already."""
    if engine.ledger() is not None:
        raise TableRefused(f"there is a ledger at {into} already", "Choose another path (--into).")
    if span.begin is None:
        engine.create_ledger(_first(engine, span, rules), keep)
    else:
        with scanned(span.begin.table) as found:
            create_ledger(into, _copied(span.begin, found), keep)


def _first(engine: Engine, span: Span, rules: str) -> pa.Table:
    """Return the first row of a ledger that begins where the original one began.

    If that was given as a time or a count, the first version with messages takes its place: the messages are the same.
    """
    start_from = span.end.progress().start_from
    if start_from != "beginning":
        start_from = f"version:{span.first}"
    reached = -1 if start_from == "beginning" else span.first - 1
    depot = engine.depot()
    schema = tables.ledger_schema(depot.payload, raw=depot.raw)
    return first_rows(schema, {None: Reached(depot.id, start_from, reached)}, rules)


def _copied(ledger: Ledger, found: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return the rows of a ledger in the schema of a new one, piece by piece."""
    schema = tables.ledger_schema(ledger.payload, raw=ledger.raw)
    pieces = (rows for piece in found for rows in plain(pa.table(piece)).select(schema.names).cast(schema).to_batches())
    return pa.RecordBatchReader.from_batches(schema, pieces)

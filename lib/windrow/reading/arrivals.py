"""Find the messages of one key and event time in the depot, as far back as its change feed goes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.delta.row_changes import has_feed
from windrow.delta.table import read_filtered
from windrow.errors import NotFoundError
from windrow.model.commits import CHANGE, VERSION
from windrow.model.messages import DEFAULTS, convert_column, microseconds
from windrow.model.timestamps import time_text
from windrow.reading import feed
from windrow.reading.feed import UNREADABLE
from windrow.reading.tables import DepotTable, equal
from windrow.reading.values import records

Row = dict[str, Any]
MessageQuery = dict[str, str | None]

CONTENT = ("source", "type", "received_at", "sequence", "payload")


def arrivals(log: DepotTable, query: MessageQuery, at: int, columns: dict[str, str], payload: pa.DataType) -> list[Row]:
    """Return the content and `version` of each message with the key, type and source in `query` (None: any).

    `at` is the event time in microseconds, `payload` the type of payloads. Versions that can no longer be read are left
    out. Raises ExpressionError for a mapping (`columns`) that needs Spark.
    """
    try:
        _, rows = feed.read_from(log, 0, lambda first: _feed(log, first, query, at, columns, payload))
    except UNREADABLE:
        return []
    if "payload" in rows.column_names:
        typed = convert_column(rows["payload"], payload)
        rows = rows.set_column(rows.column_names.index("payload"), "payload", typed)
    return [DEFAULTS | row for row in records(rows)]


def not_found_error(log: DepotTable, query: MessageQuery, at: int, mapped: bool, batch: str) -> NotFoundError:
    """Return the error that the depot has no such message; it names the nearest times of its key, and a `batch`."""
    of = ", ".join(f"{name} {value!r}" for name, value in query.items() if value is not None)
    what = f"the depot has no message of {of} at {time_text(at)} in versions up to {log.version()}"
    if mapped or not isinstance(log, DeltaTable):
        return NotFoundError(what, batch)
    among = [(name, "=", value) for name, value in query.items() if value is not None and name in feed.names(log)]
    times = np.unique(microseconds(read_filtered(log, among, ["event_time"])["event_time"].drop_null()))
    near = [time_text(int(time)) for time in times[np.argsort(np.abs(times - at), kind="stable")][:3]]
    if not near:
        return NotFoundError(what, "It has none at any other time, either.")
    return NotFoundError(what, f"The nearest are at {', '.join(near)}. {batch}")


def _feed(
    log: DepotTable, first: int, query: MessageQuery, at: int, columns: dict[str, str], payload: pa.DataType
) -> pa.Table:
    from windrow.expressions import ColumnMapping

    if isinstance(log, DeltaTable) and has_feed(log) and ColumnMapping.of_depot(columns, feed.names(log)) is None:
        with suppress(*UNREADABLE):  # the files may be readable from earlier on than the feed
            return _plain(log, first, query, at)
    return _filtered(feed.messages(log, first, columns, payload), query, at)


def _plain(log: DeltaTable, first: int, query: MessageQuery, at: int) -> pa.Table:
    """Find messages by a predicate on the feed, which opens only files that may have them."""
    names = [name for name in CONTENT if name in feed.names(log)]
    if "source" not in names:
        if query["source"]:
            return _empty()
        query = query | {"source": None}
    where = f"{equal(query)} AND CAST(event_time AS BIGINT) = {at:d} AND {CHANGE} = 'insert'"
    columns = [*names, "key", "event_time", CHANGE, VERSION]
    stream = log.load_cdf(starting_version=first, columns=columns, predicate=where, allow_out_of_range=True)
    rows = pa.RecordBatchReader.from_stream(stream).read_all()
    return rows.select([*names, VERSION]).rename_columns([*names, "version"])


def _filtered(pieces: Iterable[pa.Table], query: MessageQuery, at: int) -> pa.Table:
    """Filter all rows, piece by piece: a mapped column has no file statistics."""
    parts = []
    for messages in pieces:
        mask = pc.equal(messages["event_time"].cast(pa.int64()), at)
        for name, value in query.items():
            mask = mask if value is None else pc.and_(mask, pc.equal(messages[name], value))
        parts.append(messages.filter(mask).select([*CONTENT, "version"]))
    return pa.concat_tables(parts) if parts else _empty()


def _empty() -> pa.Table:
    return pa.schema([*((name, pa.string()) for name in CONTENT), ("version", pa.int64())]).empty_table()

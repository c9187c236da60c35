"""Read the last messages of a depot, to try rules on them: as many as asked for, and no more in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.columnar.arrow import to_plain_types
from windrow.delta.table import history, translate_read_errors
from windrow.errors import NotFoundError
from windrow.model.commits import rows_added
from windrow.model.messages import conform, microseconds, schema
from windrow.model.payload import parse
from windrow.reading import feed
from windrow.reading.tables import DepotTable, depot_table

MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Recent:
    """Messages with their `version`, from the depot versions `first` to `last`; `cut` is true if there were more."""

    messages: pa.Table
    first: int
    last: int
    truncated: bool


def recent(
    depot: str,
    columns: dict[str, str] | None = None,
    most: int = MOST,
    start: int | None = None,
    end: int | None = None,
    payload_type: str = "",
) -> Recent:
    """Read the last `most` messages of a depot, of those received in [begin, end) (microseconds) if given.

    `columns` maps the columns of a depot with other names; `payload_type` is the setting. Raises NotFoundError when
    there is no message, TableMissingError, TableUnreadableError, MessagesError; ExpressionError for a mapping that
    needs Spark.
    """
    log, payload = depot_table(depot), parse(payload_type) if payload_type else None
    bounded = start is not None or end is not None
    first_needed = 0 if bounded or not isinstance(log, DeltaTable) else _first_needed(log, most + 1)
    with translate_read_errors(depot, "depot"):
        first, rows = feed.read_from(log, first_needed, lambda at: _read(log, at, columns or {}, payload, start, end))
    if not rows.num_rows:
        raise NotFoundError(
            f"the depot {depot} has no message{' in this range' if bounded else ''}",
            "Choose another range." if bounded else "`windrow ingest` adds some.",
        )
    kept = _last(rows, most)
    versions = pc.min_max(kept["version"])
    cut = kept.num_rows < rows.num_rows or (first > first_needed and not bounded)
    return Recent(kept, versions["min"].as_py(), versions["max"].as_py(), cut)


def recent_rows(depot: str, most: int) -> pa.Table:
    """Read at most so many rows of the last versions of any Delta table, with its own columns.

    Raises TableMissingError, TableUnreadableError.
    """
    log = depot_table(depot)
    first_needed = _first_needed(log, most) if isinstance(log, DeltaTable) else 0
    with translate_read_errors(depot, "depot"):
        return feed.read_from(log, first_needed, lambda at: _at_most(most, log, at))[1]


def _at_most(most: int, log: DepotTable, first: int) -> pa.Table:
    kept, count = [pa.schema(log.schema().to_arrow()).empty_table()], 0
    for piece in feed.rows(log, first):
        kept.append(piece)
        count += piece.num_rows
        if count >= most:
            break
    return pa.concat_tables(map(to_plain_types, kept[1:] or kept)).slice(0, most)


def _first_needed(log: DeltaTable, most: int) -> int:
    """Return the latest version from which on at least `most` messages were added, by the counts in the commits."""
    counted = 0
    for commit in history(log):
        counted += rows_added(commit) or 0
        if counted >= most:
            return int(commit["version"])
    return 0


def _read(
    log: DepotTable,
    first: int,
    columns: dict[str, str],
    payload: pa.DataType | None,
    start: int | None,
    end: int | None,
) -> pa.Table:
    kept = []
    for piece in feed.messages(log, first, columns, payload):
        messages = conform(piece, payload)
        received_at = microseconds(messages["received_at"])
        mask = np.ones(messages.num_rows, np.bool_)
        if start is not None:
            mask &= received_at >= start
        if end is not None:
            mask &= received_at < end
        kept.append(messages.filter(pa.array(mask)))
    return pa.concat_tables(kept) if kept else schema().append(pa.field("version", pa.int64())).empty_table()


def _last(messages: pa.Table, most: int) -> pa.Table:
    """Return the last messages: those of the latest versions and, within a version, those received last."""
    if messages.num_rows <= most:
        return messages
    order = pc.sort_indices(messages, sort_keys=[("version", "ascending"), ("received_at", "ascending")])
    return messages.take(order[-most:])

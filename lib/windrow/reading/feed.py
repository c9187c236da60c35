"""Read the depot's change feed as messages, piece by piece and without Spark, each with the `version` that added it.

For the last messages of a depot, only the versions that contain them are read, if their commits have counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windrow.columnar.arrow import to_plain_types
from windrow.delta.table import history, translate_read_errors
from windrow.errors import NotFoundError
from windrow.model.commits import CHANGE, FEED_COLUMNS, VERSION, rows_added
from windrow.model.messages import COLUMNS, INVALID_VALUE, conform, microseconds, schema
from windrow.model.payload import parse
from windrow.reading.log import earliest_readable
from windrow.reading.tables import DepotTable, changes_of, depot_table

if TYPE_CHECKING:
    from windrow.expressions import ColumnMapping

Found = TypeVar("Found")

MAX_MESSAGES = 1_000_000
UNREADABLE = (DeltaError, pa.ArrowException, OSError)


def read_from(log: DepotTable, first: int, read: Callable[[int], Found]) -> tuple[int, Found]:
    """Read the versions from `first` on, or those still readable; return the first one and the result of `read`.

    Raises one of UNREADABLE if those cannot be read either.
    """
    try:
        return first, read(first)
    except UNREADABLE:
        readable = max(first, earliest_readable(log, depot=True))
        return readable, read(readable)


def messages(log: DepotTable, first: int, columns: dict[str, str], payload: pa.DataType | None) -> Iterator[pa.Table]:
    """Yield the messages that versions from `first` on added; `columns` maps the columns of a depot with other names.

    Mapped payloads get the type `payload`; None: the type that the mapping produces. Raises ExpressionError for
    a mapping that needs Spark.
    """
    from windrow.expressions import ColumnMapping

    if not isinstance(log, DeltaTable):
        return _plain(log, first)
    mapping = ColumnMapping.of_depot(columns, names(log))
    if mapping is None:
        return _plain(log, first)
    # All columns are read, because delta-rs cannot select a column whose name has a dot.
    kind = payload or mapping.payload_type(pa.schema(log.schema().to_arrow()))
    return (apply(mapping, added, kind) for added in _read_added(log, first, None))


def rows(log: DepotTable, first: int) -> Iterator[pa.Table]:
    """Yield the rows that versions from `first` on added, with their own columns only."""
    for added in _read_added(log, first, None):
        yield added.drop_columns([name for name in FEED_COLUMNS if name in added.column_names])


def apply(mapping: ColumnMapping, added: pa.Table, payload: pa.DataType) -> pa.Table:
    """Return the messages that the mapping makes of rows of the feed, with `version` and payloads of a type."""
    rows = added.drop_columns([name for name in FEED_COLUMNS if name in added.column_names])
    messages = mapping.apply(rows, payload).read_all()
    return messages.append_column("version", added[VERSION].cast(pa.int64()))


def names(log: DepotTable) -> list[str]:
    """Return the columns of a table."""
    return [field.name for field in log.schema().fields]


def _plain(log: DepotTable, first: int) -> Iterator[pa.Table]:
    own = [name for name in (*COLUMNS, INVALID_VALUE) if name in names(log)]
    for added in _read_added(log, first, [*own, CHANGE, VERSION]):
        yield added.select([*own, VERSION]).rename_columns([*own, "version"])


def _read_added(log: DepotTable, first: int, columns: list[str] | None) -> Iterator[pa.Table]:
    for batch in changes_of(log, first, columns=columns, skip_unknown=True):
        feed = to_plain_types(pa.Table.from_batches([batch]))
        yield feed.filter(pc.equal(feed[CHANGE], "insert"))


@dataclass(frozen=True, slots=True)
class Recent:
    """Messages with their `version`, of the depot versions `first` to `last`; `truncated` if there were more."""

    messages: pa.Table
    first: int
    last: int
    truncated: bool


def recent(
    depot: str,
    columns: dict[str, str] | None = None,
    most: int = MAX_MESSAGES,
    start: int | None = None,
    end: int | None = None,
    payload_type: str = "",
) -> Recent:
    """Read the last `most` messages of a depot, of those received in [start, end) (microseconds) if given.

    `columns` maps the columns of a depot with other names; `payload_type` is the setting. Raises NotFoundError when
    there is no message, TableMissingError, TableUnreadableError, MessagesError; ExpressionError for a mapping that
    needs Spark.
    """
    log, payload = depot_table(depot), parse(payload_type) if payload_type else None
    bounded = start is not None or end is not None
    first_needed = 0 if bounded or not isinstance(log, DeltaTable) else _first_needed(log, most + 1)
    with translate_read_errors(depot, "depot"):
        first, rows = read_from(log, first_needed, lambda at: _read(log, at, columns or {}, payload, start, end))
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
    """Read at most `most` rows of the last versions of any Delta table, with its own columns.

    Raises TableMissingError, TableUnreadableError.
    """
    log = depot_table(depot)
    first_needed = _first_needed(log, most) if isinstance(log, DeltaTable) else 0
    with translate_read_errors(depot, "depot"):
        return read_from(log, first_needed, lambda at: _at_most(most, log, at))[1]


def _at_most(most: int, log: DepotTable, first: int) -> pa.Table:
    kept, count = [pa.schema(log.schema().to_arrow()).empty_table()], 0
    for piece in rows(log, first):
        kept.append(piece)
        count += piece.num_rows
        if count >= most:
            break
    return pa.concat_tables(map(to_plain_types, kept[1:] or kept)).slice(0, most)


def _first_needed(log: DeltaTable, most: int) -> int:
    """Return the latest version since which at least `most` messages were added, by the counts in the commits."""
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
    for piece in messages(log, first, columns, payload):
        conformed = conform(piece, payload)
        received_at = microseconds(conformed["received_at"])
        mask = np.ones(conformed.num_rows, np.bool_)
        if start is not None:
            mask &= received_at >= start
        if end is not None:
            mask &= received_at < end
        kept.append(conformed.filter(pa.array(mask)))
    return pa.concat_tables(kept) if kept else schema().append(pa.field("version", pa.int64())).empty_table()


def _last(arrived: pa.Table, most: int) -> pa.Table:
    """Return the last messages: those of the latest versions and, within a version, those received last."""
    if arrived.num_rows <= most:
        return arrived
    order = pc.sort_indices(arrived, sort_keys=[("version", "ascending"), ("received_at", "ascending")])
    return arrived.take(order[-most:])

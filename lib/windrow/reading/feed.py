"""Read the depot's change feed as messages, piece by piece and without Spark, each with the `version` that added it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windrow.columnar.arrow import to_plain_types
from windrow.model.commits import CHANGE, FEED_COLUMNS, VERSION
from windrow.model.messages import COLUMNS, INVALID_VALUE
from windrow.reading.log import earliest_readable
from windrow.reading.tables import DepotTable, changes_of

if TYPE_CHECKING:
    from windrow.expressions import ColumnMapping

Found = TypeVar("Found")

UNREADABLE = (DeltaError, pa.ArrowException, OSError)


def read_from(log: DepotTable, first: int, read: Callable[[int], Found]) -> tuple[int, Found]:
    """Return what `read` gives of the versions from `first` on, or of those that can still be read, and the first one.

    Raises one of UNREADABLE if these cannot be read, either.
    """
    try:
        return first, read(first)
    except UNREADABLE:
        readable = max(first, earliest_readable(log, depot=True))
        return readable, read(readable)


def messages(log: DepotTable, first: int, columns: dict[str, str], payload: pa.DataType | None) -> Iterator[pa.Table]:
    """Yield the messages that versions from `first` on added; `columns` maps the columns of a depot with other names.

    Mapped payloads get the type `payload`; None is the one that the mapping gives. Raises ExpressionError for
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
    return (apply(mapping, added, kind) for added in _added(log, first, None))


def rows(log: DepotTable, first: int) -> Iterator[pa.Table]:
    """Yield the rows that versions from `first` on added, with their own columns only."""
    for added in _added(log, first, None):
        yield added.drop_columns([name for name in FEED_COLUMNS if name in added.column_names])


def apply(mapping: ColumnMapping, added: pa.Table, payload: pa.DataType) -> pa.Table:
    """Return rows of the feed as the mapping makes messages of them, with `version` and payloads of a type."""
    rows = added.drop_columns([name for name in FEED_COLUMNS if name in added.column_names])
    messages = mapping.apply(rows, payload).read_all()
    return messages.append_column("version", added[VERSION].cast(pa.int64()))


def names(log: DepotTable) -> list[str]:
    """Return the columns of a table."""
    return [field.name for field in log.schema().fields]


def _plain(log: DepotTable, first: int) -> Iterator[pa.Table]:
    own = [name for name in (*COLUMNS, INVALID_VALUE) if name in names(log)]
    for added in _added(log, first, [*own, CHANGE, VERSION]):
        yield added.select([*own, VERSION]).rename_columns([*own, "version"])


def _added(log: DepotTable, first: int, columns: list[str] | None) -> Iterator[pa.Table]:
    for batch in changes_of(log, first, columns=columns, skip_unknown=True):
        feed = to_plain_types(pa.Table.from_batches([batch]))
        yield feed.filter(pc.equal(feed[CHANGE], "insert"))

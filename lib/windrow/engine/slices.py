"""A slice of the depot in memory on the driver, as Arrow; the Spark engine uses it for small slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windrow.engine.arrivals import Slice
from windrow.errors import DepotChanged, DepotUnreadable, ExpressionError, ShortRead, first_line
from windrow.expressions import Mapping as ColumnMapping
from windrow.model import messages as message_columns
from windrow.model.commits import FEED_COLUMNS, VERSION

if TYPE_CHECKING:
    from windrow.formats.raw.byte_counts import Volume

TIMES = ("event_time", "received_at")
GO_ON = (
    "The version was not read. To skip it and read none of its rows: `windrow run --accept {version}` "
    '(not of a topology); if a retention job deletes rows, on_depot_delete = "ignore" reads what such versions add.'
)


@dataclass(frozen=True, slots=True)
class ArrowSlice(Slice):
    """Whole depot versions as one Arrow table of messages with `version`."""

    messages: pa.Table
    expected: Mapping[int, int | None]
    path: str = "driver"
    volume: Volume | None = None

    def summarise(self, latest: int) -> pa.Table:
        """Return `messages.summarise` of all rows."""
        return message_columns.summarise(self.messages, latest)

    def streams(self) -> pa.Table | None:
        """Return the streams of its rows."""
        return self.messages.group_by(["source", "key"]).aggregate([])

    def table(self) -> pa.Table:
        """Return the messages."""
        return self.messages


def messages_of(kept: pa.Table, payload: pa.DataType) -> pa.Table:
    """Return the messages of new rows of a change feed, each with the depot version that added it.

    Raises DepotUnreadable for text that is not UTF-8.
    """
    version = kept[VERSION].cast(pa.int64())
    rows = kept.drop_columns([name for name in FEED_COLUMNS if name in kept.schema.names])
    messages = message_columns.conform(rows, payload)
    arrived = messages.select(list(message_columns.COLUMNS)).append_column("version", version)
    require_text(arrived)
    return arrived


def require_whole(counted: Mapping[int, int], expected: Mapping[int, int | None]) -> None:
    """Raise ShortRead for a version with another number of rows than its commit says it added."""
    for version, wanted in expected.items():
        if wanted is not None and counted.get(version, 0) != wanted:
            raise ShortRead(
                f"depot version {version} gave {counted.get(version, 0)} rows, its commit added {wanted}",
                "Nothing was written. If this happens again, the depot's files do not match its log.",
            )


def require_text(messages: pa.Table) -> None:
    """Raise DepotUnreadable for text that is not UTF-8: Spark accepts it, but the ledger could not be read then."""
    try:
        # guard: text-is-text
        messages.validate(full=True)
    except pa.ArrowInvalid as error:
        extremes = pc.min_max(messages["version"]).as_py()
        raise DepotUnreadable(
            f"depot versions {extremes['min']} to {extremes['max']} have text that is not UTF-8: {first_line(error)}",
            'Begin a new ledger (--ledger) after them: start_from = "version:N".',
        ) from error


def mapping_of(columns: Mapping[str, str], schema: pa.Schema) -> ColumnMapping | None:
    """Return the mapping of a depot's columns to those of a message; None if the depot has message columns.

    Raises ExpressionError if a column is missing and not mapped, or if a time is a number without a unit.
    """
    mapping = ColumnMapping.of_depot(dict(columns), schema.names)
    for name in TIMES if mapping is None else ():
        if pa.types.is_integer(schema.field(name).type):
            raise ExpressionError(
                f"[depot.columns] {name}: the column holds numbers without a unit",
                f'Map it: {name} = "timestamp_seconds({name})", timestamp_millis or timestamp_micros.',
            )
    return mapping


def refuse_changes(changes: pa.Table) -> None:
    """Raise DepotChanged if a change feed has rows other than insertions."""
    # guard: depot-unchanged-rows
    if changes.num_rows:
        first = changes[VERSION][0].as_py()
        raise DepotChanged(
            f"depot version {first} deletes or updates rows, but a depot may only grow",
            GO_ON.format(version=first),
        )

"""A slice of the depot held on the driver as Arrow: what the embedded engine always has, and Spark when it is small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import where
from windrow.errors import DepotChanged, DepotUnreadable, ExpressionError, first_line
from windrow.expressions import Mapping as ColumnMapping
from windrow.model import messages as message_columns
from windrow.model.commits import FEED_COLUMNS, VERSION

TIMES = ("event_time", "received_at")


@dataclass(frozen=True, slots=True)
class ArrowSlice:
    """Whole depot versions as one Arrow table of messages with `version`."""

    messages: pa.Table
    expected: Mapping[int, int | None]
    path: str = "driver"
    volume: None = None

    def formatted(self, partial: pa.Table) -> ArrowSlice:
        """Return itself: these are messages."""
        return self

    def summarise(self, latest: int) -> pa.Table:
        """Return `messages.summarise` of all rows."""
        return message_columns.summarise(self.messages, latest)

    def streams(self) -> pa.Table:
        """Return the streams of its rows."""
        return self.messages.group_by(["source", "key"]).aggregate([])

    def table(self) -> pa.Table:
        """Return the messages."""
        return self.messages

    def beside(self, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
        """Return nothing: all there is are messages."""
        return []


def messages_of(feed: pa.Table, inserted: pa.ChunkedArray, on_depot_delete: str) -> pa.Table:
    """Return the messages in those rows of a change feed that were inserted, each with the depot version that added it.

    Raises DepotChanged for deletions and updates, unless `on_depot_delete` is `ignore`; DepotUnreadable.
    """
    if on_depot_delete == "error":
        refuse_changes(feed.filter(pc.invert(inserted)))
    kept = where(feed, inserted)
    version = kept[VERSION].cast(pa.int64())
    messages = message_columns.conform(kept.drop_columns([name for name in FEED_COLUMNS if name in kept.schema.names]))
    arrived = messages.select(list(message_columns.COLUMNS)).append_column("version", version)
    require_text(arrived)
    return arrived


def require_text(messages: pa.Table) -> None:
    """Raise DepotUnreadable for text that is no UTF-8: Spark reads it, and the ledger could not be read with it."""
    try:
        # guard: text-is-text
        messages.validate(full=True)
    except pa.ArrowInvalid as error:
        extremes = pc.min_max(messages["version"]).as_py()
        raise DepotUnreadable(
            f"text in depot versions {extremes['min']} to {extremes['max']} is none: {first_line(error)}",
            'Begin a new ledger (--ledger) behind it: start_from = "version:N".',
        ) from error


def mapping_of(columns: Mapping[str, str], schema: pa.Schema) -> ColumnMapping | None:
    """Return how the columns of a depot become those of a message; None when it has them as they are.

    Raises ExpressionError when a column is missing and nothing is mapped to it, or when a time is a bare number.
    """
    mapping = ColumnMapping.of_depot(dict(columns), schema.names)
    for name in TIMES if mapping is None else ():
        if pa.types.is_integer(schema.field(name).type):
            raise ExpressionError(
                f"[depot.columns] {name}: the depot has it as a number, and nothing says of what",
                f'Map it: {name} = "timestamp_seconds({name})", timestamp_millis or timestamp_micros.',
            )
    return mapping


def refuse_changes(changes: pa.Table) -> None:
    """Raise DepotChanged when rows of a change feed are anything but insertions."""
    # guard: depot-unchanged-rows
    if changes.num_rows:
        first = changes[VERSION][0].as_py()
        raise DepotChanged(
            f"depot version {first} deletes or updates rows; a depot only grows",
            'Nothing of it was read. If a retention job does this, set on_depot_delete = "ignore".',
        )


def cut(messages: pa.Table, counts: Mapping[int, int | None], versions: list[int]) -> ArrowSlice:
    """Return the slice of the given versions."""
    mask = pc.is_in(messages["version"], pa.array(versions, pa.int64()))
    return ArrowSlice(where(messages, mask), {version: counts[version] for version in versions})

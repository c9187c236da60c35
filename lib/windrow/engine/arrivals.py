"""New versions of a depot, and how they are cut into slices of whole versions, one for each microbatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import DepotUnreadable, ExpressionError, ShortRead, first_line
from windrow.expressions import Mapping as ColumnMapping
from windrow.formats.raw.byte_counts import Volume
from windrow.model import messages as message_columns
from windrow.model.commits import FEED_COLUMNS, VERSION, ListedVersions
from windrow.model.summary import summarise
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from windrow.engine.conversion import Conversion, ToMessages
    from windrow.engine.raw_slices import RawSlice
    from windrow.engine.spark.raw_executors import RawExecutorsSlice


TIMES = ("event_time", "received_at")


class Slice:
    """The messages of whole depot versions: `expected` are those with rows, and how many rows each added by the log.

    The number is None if it is not to be checked. `path` says where the messages are: `driver` or `executors`.
    `volume` has the byte counts of a raw depot, None for a depot of messages.
    """

    __slots__ = ()
    path: str
    expected: Mapping[int, int | None]
    volume: Volume | None

    def parse(self, partial: pa.Table) -> Slice:
        """Return itself: these are messages."""
        return self

    def summarise(self, latest: int) -> pa.Table:
        """Return `summary.summarise` of all its rows."""
        raise NotImplementedError

    def streams(self) -> pa.Table | None:
        """Return the distinct `source, key` of its rows; None if only the executors know them, or there are none."""
        return None

    def table(self) -> pa.Table:
        """Return all messages, with `version`, as one Arrow table."""
        raise NotImplementedError

    def extra_rows(self, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
        """Return the other ledger rows that a raw depot gives, with `known`: rejects and partial rows."""
        return []


@dataclass(frozen=True, slots=True)
class ArrowSlice(Slice):
    """Whole depot versions as one Arrow table of messages with `version`."""

    messages: pa.Table
    expected: Mapping[int, int | None]
    path: str = "driver"
    volume: Volume | None = None

    def summarise(self, latest: int) -> pa.Table:
        """Return `summary.summarise` of all rows."""
        return summarise(self.messages, latest)

    def streams(self) -> pa.Table | None:
        """Return the streams of its rows."""
        return self.messages.group_by(["source", "key"]).aggregate([])

    def table(self) -> pa.Table:
        """Return the messages."""
        return self.messages


# Whole depot versions as the depot stores them. `parse` returns the messages, for a raw depot those of its chunks after
# the `partial` rows of the ledger. It raises ShortRead if the depot's log lists more chunks than were read.
Arrived: TypeAlias = Union[Slice, "RawSlice", "RawExecutorsSlice"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """New versions of the depot, from one read of the change feed; `listed` are the versions that it covers.

    `counts` has how many rows each version with rows added by the log (None: unknown), and `byte_count` how many bytes.
    All rows are here up to version `last` (None: unknown).
    """

    listed: ListedVersions
    counts: Mapping[int, int | None]
    byte_count: Mapping[int, int]
    settings: Settings
    conversion: Conversion
    last: int | None

    def after(self, version: int, max_messages: int, upto: int | None = None) -> Arrived | None:
        """Return the next slice after `version`: whole versions of at most `max_messages`, or one larger version.

        With `upto`, the slice ends at this version at the latest.
        """
        left = {at: count for at, count in self.counts.items() if upto is None or at <= upto}
        while versions := self.conversion.next_versions(left, self.byte_count, version, max_messages):
            arrived = self._slice({at: self.counts[at] for at in versions})
            if arrived is not None:
                return arrived
            version = versions[-1]
        return None

    def _slice(self, counts: Mapping[int, int | None]) -> Arrived | None:
        """Return the slice of some versions, None if they have no new rows."""
        raise NotImplementedError

    def _filled(self, rows: pa.Table, counts: Mapping[int, int | None], to_messages: ToMessages) -> Arrived | None:
        """Return the slice of the versions with rows; one that has rows by the log stays in, whatever was read."""
        present = set(version_of(rows).unique().to_pylist())
        filled = [at for at in counts if counts[at] or at in present]
        return self.conversion.cut(rows, counts, filled, to_messages) if filled else None


def version_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the depot version of each row, message or chunk."""
    return rows[VERSION if VERSION in rows.column_names else "version"]


def next_versions(counts: Mapping[int, int | None], after: int, max_messages: int) -> list[int]:
    """Choose the versions of the next slice: whole ones, together at most `max_messages`, at least one.

    A version whose count is unknown gets a separate slice.
    """
    chosen: list[int] = []
    total = 0
    for version in sorted(version for version in counts if version > after):
        count = counts[version]
        total += max_messages if count is None else count
        # guard: version-whole
        if chosen and total > max_messages:
            break
        chosen.append(version)
    return chosen


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

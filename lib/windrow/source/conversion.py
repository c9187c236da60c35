"""Convert the rows of a depot into messages: by the format of a raw depot, and by `[depot.columns]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import filter_rows, to_plain_type, to_plain_types
from windrow.delta.log import Log, TableInfo
from windrow.errors import (
    ExpressionError,
    IncompatibleTableError,
    MessagesError,
    SettingsError,
    ensure,
)
from windrow.expressions import ColumnMapping
from windrow.model import messages, payload
from windrow.model.chunks import RAW
from windrow.model.commits import CHANGE, FEED_COLUMNS, VERSION
from windrow.rows.rows import Function
from windrow.settings.settings import Settings
from windrow.source.depot_changes import refuse_changes
from windrow.source.depot_rows import StateChanges, has_states, is_ledger, no_rows_of, rows_of
from windrow.source.text import require_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windrow.formats.format import Format
    from windrow.rows.frame import FrameRows

Counted = Mapping[int, int | None]
MIN_BYTES = 10  # of a row in a file: the recorded sample takes 16
COLUMNS = list(messages.COLUMNS)
TIMES = ("event_time", "received_at")


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a depot is converted: its format (None if it is not raw) and its mapping (None if it has message columns).

    `columns` are the input of the mapping, `payload` is the type of the resulting payloads. A `verbatim` depot has no
    messages: its rows are read unchanged, or from a topology's table the changes of a `state`.
    """

    format: Format | None
    mapping: ColumnMapping | None
    columns: pa.Schema
    payload: pa.DataType
    verbatim: bool = False
    state: StateChanges | None = None

    @classmethod
    def of(cls, settings: Settings, table: TableInfo, rows: bool | StateChanges = False) -> Conversion:
        """Return the conversion of a depot; with `rows`, the rows of a depot without messages are read unchanged.

        Raises SettingsError, ExpressionError, IncompatibleTableError for a ledger.
        """
        if isinstance(rows, StateChanges):
            return cls(None, None, table.schema, table.payload, verbatim=True, state=rows)
        if has_states(table.schema):
            raise IncompatibleTableError(
                f"{settings.depot} has the states of a topology",
                'Name the state whose changes to read: Depot("...", state="...").',
            )
        if rows and _has_no_messages(settings, table):
            return cls(None, None, table.schema, table.payload, verbatim=True)
        if is_ledger(table.schema):
            raise IncompatibleTableError(
                f"{settings.depot} is a ledger, not a depot", "Check whether depot and ledger are swapped."
            )
        if not table.raw:
            mapping = mapping_of(settings.depot_columns, table.schema, rejects=not rows)
            return cls(None, mapping, table.schema, payload_type_of(settings, mapping, table.schema))
        if settings.format.type is None:
            raise SettingsError(
                "the depot is raw, but the format of its chunks is not set", "Set type and fields under [format]."
            )
        from windrow.formats.format import format_of
        from windrow.formats.raw.spans import columns_of, narrow_format

        with settings.locating_errors("format", named="fields"):
            format_ = format_of(settings.format)
        columns = columns_of(format_.parser.schema)
        mapping = mapping_of(settings.depot_columns, columns, rejects=not rows)
        format_, columns = narrow_format(mapping, format_)
        return cls(format_, mapping, columns, payload_type_of(settings, mapping, columns))

    @property
    def of_ledger(self) -> bool:
        """Tell whether the depot is a ledger, from which closed batches or the changes of a state are read."""
        return self.state is not None or (self.verbatim and is_ledger(self.columns))

    def counts(self, added: Mapping[int, int | None]) -> dict[int, int | None]:
        """Return how many rows each version has; None for a ledger, whose log does not count what is read from it."""
        return dict.fromkeys(added) if self.of_ledger else dict(added)

    def map_feed(self, frame: DataFrame) -> DataFrame:
        """Return the change feed as messages with the feed's columns; that of a raw depot is unchanged."""
        if self.mapping is None or self.format is not None:
            return frame
        return frame.selectExpr(*self.mapping.spark_select(self.payload), CHANGE, VERSION)

    def new_rows(self, feed: pa.Table, inserted: pa.ChunkedArray, on_depot_change: str) -> pa.Table:
        """Return the new rows of a change feed: messages, chunks of a raw depot, or unchanged rows.

        Raises DepotChangedError for deletions and updates, unless `on_depot_change` is `ignore`.
        """
        if self.verbatim:
            return rows_of(feed, inserted, on_depot_change, self.state)
        if on_depot_change == "error":
            refuse_changes(feed.filter(pc.invert(inserted)))
        kept = filter_rows(feed, inserted)
        if self.format is None:
            return messages_of(kept, self.payload)
        return chunks_of(kept)

    def apply_on(self, session: SparkSession) -> Function:
        """Return a function that maps the fields of records to messages, in the same order, on Spark."""

        def to_messages(fields: pa.Table) -> pa.Table:
            if self.mapping is None or not fields.num_rows:
                return self._none() if self.mapping else messages.conform(fields, self.payload).select(COLUMNS)
            from windrow.rows.frame import frame_of

            frame = frame_of(session, fields.select(self.columns.names).cast(self.columns, safe=False))
            rows = to_plain_types(frame.selectExpr(*self.mapping.spark_select(self.payload)).toArrow())
            ensure(rows.num_rows == fields.num_rows, "Spark returned as many messages as there are records")
            return messages.conform(rows, self.payload)

        return to_messages

    def map_records(self, frame: DataFrame) -> DataFrame:
        """Return the fields of records, with `VERSION`, as messages with `version`."""
        mapping = self.mapping
        columns = mapping.spark_select(self.payload) if mapping else [name for name in COLUMNS if name in frame.columns]
        return frame.selectExpr(*columns, f"{VERSION} AS version")

    def on_executors(self, frame: DataFrame, count: int) -> FrameRows:
        """Return a frame of `count` messages as rows; without a column `source` they belong to the default source."""
        from pyspark.sql import functions as F

        from windrow.rows.frame import FrameRows

        if "source" not in frame.columns:
            frame = frame.withColumn("source", F.lit(messages.DEFAULTS["source"]))
        return FrameRows(frame, messages_in(self.payload), count)

    def needs_executors(self, rows: int, byte_count: int, max_driver_messages: int) -> bool:
        """Tell whether Spark's executors should read this many rows and bytes of the depot.

        The driver reads raw chunks faster, as long as they fit into its memory.
        """
        if self.format is None:
            return rows > max_driver_messages
        from windrow.formats.raw.two_passes import can_spread

        many = rows > max_driver_messages or byte_count > self.format.limits.max_read_bytes
        return many and can_spread(self.format)

    def no_rows(self) -> pa.Table:
        """Return an empty table with the columns of what is read from the depot, and `version`."""
        if self.verbatim:
            return no_rows_of(self.columns, self.state)
        return self._none().append_column(pa.field("version", pa.int64()), pa.array([], pa.int64()))

    def _none(self) -> pa.Table:
        columns = messages.schema(self.payload)
        if self.mapping is not None and self.mapping.rejects:
            columns = columns.append(pa.field(messages.INVALID_VALUE, pa.string()))
        return columns.empty_table()

    def most_rows(self, max_messages: int) -> int:
        """Return the most rows of the depot in a microbatch of several versions."""
        return max_messages if self.format is None else min(max_messages, self.format.limits.max_chunks)

    def next_versions(self, counts: Counted, byte_count: Mapping[int, int], after: int, max_messages: int) -> list[int]:
        """Choose the versions of the next slice after one: by their rows, and in a raw depot also by their bytes."""
        estimated = {
            at: byte_count[at] // MIN_BYTES if count is None and at in byte_count else count
            for at, count in counts.items()
        }
        chosen = next_versions(estimated, after, self.most_rows(max_messages))
        if self.format is None:
            return chosen
        sums = accumulate(byte_count.get(version, 0) for version in chosen)
        return [
            at
            for at, read in zip(chosen, sums, strict=True)
            if at == chosen[0] or read <= self.format.limits.max_read_bytes
        ]

    def fits(self, byte_count: Mapping[int, int]) -> bool:
        """Tell whether versions with these byte counts may be read into memory at once."""
        return self.format is None or sum(byte_count.values()) <= self.format.limits.max_read_bytes

    def byte_count(self, log: Log, counts: Counted) -> dict[int, int]:
        """Return how many bytes versions have according to the log, if that decides how many are read at once.

        It does in a raw depot, or if the number of rows is unknown; not in a ledger, which has rows of all kinds.
        """
        decides = self.format is not None or (None in counts.values() and not self.of_ledger)
        return log.bytes_added(min(counts) - 1, max(counts)) if decides and counts else {}

    def apply(self, rows: pa.Table) -> pa.Table:
        """Map rows, or the fields of a raw depot's records, to messages in the same order, without Spark."""
        if self.mapping is None:
            return messages.conform(rows, self.payload).select(COLUMNS)
        return self.mapping.apply(
            rows.select(self.columns.names).cast(self.columns, safe=False), self.payload
        ).read_all()

    def require_embedded(self) -> None:
        """Raise ExpressionError if only Spark can run the mapping."""
        if self.mapping is not None:
            self.mapping.duckdb_select(self.columns, self.payload)


def payload_type_of(settings: Settings, mapping: ColumnMapping | None, columns: pa.Schema) -> pa.DataType:
    """Return the payload type that is set, or else the one that `columns` imply.

    Raises MessagesError if payloads must be converted and no expression says how.
    """
    depot_type = payload.of_column(columns)
    if not settings.payload_type:
        return mapping.payload_type(columns) if mapping else payload.text_or_bytes(depot_type)
    type_ = payload.parse(settings.payload_type)
    mapped_type = to_plain_type(columns.field("payload").type) if "payload" in columns.names else depot_type
    if mapping is None and type_ != mapped_type:
        has = payload.name(depot_type) if mapped_type == depot_type else str(mapped_type)
        raise MessagesError(
            f"payload_type is {payload.name(type_)}, but the depot has payloads of type {has}",
            'Map them: write payload = "payload" under [depot.columns], or another expression.',
        )
    return type_


def _has_no_messages(settings: Settings, table: TableInfo) -> bool:
    """Tell whether a table is neither a raw depot nor a depot of messages; a ledger has the columns of both."""
    if table.raw or settings.depot_columns:
        return False
    return is_ledger(table.schema) or not set(COLUMNS) <= set(table.schema.names)


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

    Raises DepotUnreadableError for text that is not UTF-8.
    """
    version = kept[VERSION].cast(pa.int64())
    rows = kept.drop_columns([name for name in FEED_COLUMNS if name in kept.schema.names])
    names = [name for name in (*COLUMNS, messages.INVALID_VALUE) if name in (*COLUMNS, *rows.column_names)]
    arrived = messages.conform(rows, payload).select(names).append_column("version", version)
    require_text(arrived)
    return arrived


def chunks_of(kept: pa.Table) -> pa.Table:
    """Return the chunks of new rows of a change feed, each with the depot version that added it."""
    columns = {field.name: kept[field.name].cast(field.type) for field in RAW}
    return pa.table(columns | {"version": kept[VERSION].cast(pa.int64())})


def messages_in(payload: pa.DataType) -> Function:
    """Return a function that casts Spark's messages to the ledger's types, and refuses text that is not UTF-8."""

    def conform(rows: pa.Table) -> pa.Table:
        arrived = messages.conform(rows, payload)
        # guard: executors-text
        require_text(arrived)
        return arrived

    return conform


def mapping_of(columns: Mapping[str, str], schema: pa.Schema, *, rejects: bool) -> ColumnMapping | None:
    """Return the mapping of a depot's columns to those of a message; None if the depot has message columns.

    With `rejects`, a value that cannot be cast makes its message invalid; a topology, which rejects none, stops.

    Raises ExpressionError if a column is missing and not mapped, or if a time is a number without a unit.
    """
    mapping = ColumnMapping.of_depot(dict(columns), schema.names, rejects=rejects)
    for name in TIMES if mapping is None else ():
        if pa.types.is_integer(schema.field(name).type):
            raise ExpressionError(
                f"[depot.columns] {name}: the column holds numbers without a unit",
                f'Map it: {name} = "timestamp_seconds({name})", timestamp_millis or timestamp_micros.',
            )
    return mapping

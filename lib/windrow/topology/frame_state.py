"""A state as functions on Spark DataFrames read and change it. Its rows stay on the executors.

If `combine` reduces the new rows to a few, these go to the driver and are joined with the state there, as in functions
on Arrow tables, because a commit of a few rows is much faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, DecimalType, IntegralType

from windrow.columnar.arrow import conform, to_plain_types
from windrow.errors import TopologyError
from windrow.ledger.result import MicrobatchCounts, MicrobatchResult
from windrow.model import messages
from windrow.model.id_filter import IdFilter
from windrow.model.tables import CHANGED, DELETED
from windrow.rows.frame import frame_of, schema_of
from windrow.rows.rows import Rows
from windrow.runtime.executors import persist_rows
from windrow.topology import arrow_state
from windrow.topology.arrow_state import ArrowState
from windrow.topology.combining import Aggregation, Given, parse_aggregations
from windrow.topology.order import ADDED, ORDER, with_processing_times
from windrow.topology.state import DUE, State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from windrow.engine.spark.engine import SparkEngine
    from windrow.runtime.algorithm import MicrobatchPlan
    from windrow.source import Source
    from windrow.source.slices import Slice

ID = pa.field("id", pa.string())
HAS_ROW = "windrow has a row"
FEW_ROWS = 20_000  # that go to the driver
EXACT = DecimalType(38, 0)


class FrameState:
    """The rows of a state, as functions have left them so far. Frames have key and value columns."""

    def __init__(self, declared: State, plan: MicrobatchPlan, now: int) -> None:
        """Wrap the rows that are stored before a microbatch: `id` and the columns.

        Rows are written at `now` (microseconds), from which their time to live counts.
        """
        self._state, self._written_at = declared, now
        self._opened = plan.ledger.open_on_executors(plan.primed.fence)
        self._stored = self._frame()
        self._changed: DataFrame | None = None
        self.few = self._nothing()  # the changes, instead of a frame, as long as they are few rows

    def all(self, keys: DataFrame | None = None) -> DataFrame:
        """Return all rows of the state, or those under `keys`, which have its first key columns, or all.

        A few keys go to the driver, so that only their rows are read. Raises TopologyError.
        """
        self._spread()
        if keys is None:
            return self._now(self._stored)
        leading = self._state.leading(keys.columns, "all")
        prefixes = persist_rows(self._conform(keys, leading, "all").distinct())
        null = prefixes.where(" OR ".join(f"`{name}` IS NULL" for name in leading.names)).limit(1)
        few, stored = to_plain_types(prefixes.limit(FEW_ROWS + 1).unionByName(null).toArrow()), self._stored
        under = self._state.under(few, "all")
        if few.num_rows <= FEW_ROWS:
            stored = self._frame(under)
        return self._now(stored).join(_sort_on_executors(prefixes), leading.names, "left_semi")

    def _now(self, stored: DataFrame) -> DataFrame:
        """Return stored rows as functions have left them so far, and new ones."""
        rows = stored.select(self._state.columns.names)
        if self._changed is None:
            return rows
        stays = self._without(rows, self._changed)
        return stays.unionByName(self._changed.where(~F.col(DELETED)).drop(DELETED))

    def get(self, keys: DataFrame | None = None) -> DataFrame:
        """Return the state's row for each row of `keys`; a state without a key needs none.

        A key that has no row gets the initial values, which are NULL unless declared.
        """
        names = self._state.keys.names
        return self._with_values(
            self._conform(self._keys(keys, "get"), self._state.keys, "get") if names else self._one_row()
        )

    def put(self, rows: DataFrame) -> None:
        """Write rows, one for each key, which replace the rows with the same keys. Raises TopologyError."""
        new = self._conform(rows, self._state.written, "put")
        if self._state.ttl is not None:
            at = F.lit(self._state.forgotten_at(self._written_at).value)
            new = new.withColumn(DUE.name, F.timestamp_micros(at))
        elif self._state.falls_due:
            missing = self._state.refusal("put", f"has a row whose {DUE.name!r} is NULL", "")
            new = new.withColumn(DUE.name, F.coalesce(DUE.name, F.raise_error(F.lit(str(missing))).cast("timestamp")))
        self._change(new.withColumn(DELETED, F.lit(False)))

    def delete(self, keys: DataFrame | None = None) -> None:
        """Delete keys; a key without a row has no effect."""
        names = self._state.keys.names
        gone = self._conform(self._keys(keys, "delete"), self._state.keys, "delete").distinct() if names else None
        gone = self._one_row() if gone is None else gone
        types = from_arrow_schema(self._state.values)
        nothing = [F.lit(None).cast(types[name].dataType).alias(name) for name in self._state.values.names]
        self._change(gone.select("*", *nothing, F.lit(True).alias(DELETED)))

    def combine(self, rows: DataFrame, /, **columns: Given) -> None:
        """Aggregate rows by key, and join each aggregate with the previous value; other values do not change.

        The operations are those of `ArrowState.combine`. Rows of a frame have no order, so `first` and `last` need a
        column to order by: `price=("price", "last", "event_time")`. Raises TopologyError.
        """
        aggregations = parse_aggregations(self._state, columns, rows.columns)
        names = self._state.keys.names
        self._state.require_columns(rows.columns, self._state.keys, "combine")
        kinds = {field.name: field.dataType for field in rows.schema}
        aggregates = [
            self._aggregate(aggregation, kinds).alias(f"value {number}")
            for number, aggregation in enumerate(aggregations)
        ]
        new = rows.groupBy(*names).agg(*aggregates, F.count("*").alias("rows")).where("rows > 0").drop("rows")
        new = persist_rows(
            new.select(
                *self._cast_columns(self._state.keys), *[F.col(f"`value {n}`") for n in range(len(aggregations))]
            )
        )
        if self._changed is None:
            few = to_plain_types(new.limit(FEW_ROWS + 1).toArrow())
            if few.num_rows <= FEW_ROWS:
                self.few.join(few, aggregations)
                return
        joining = partial(_joining, self._state, aggregations)
        self.put(self._with_values(new).mapInArrow(joining, from_arrow_schema(self._state.columns)))

    @property
    def is_on_executors(self) -> bool:
        """Tell whether executors have the changes."""
        return self._changed is not None

    def load_changes(self, changed: pa.Table) -> None:
        """Begin with the changes of functions on Arrow tables."""
        self.few.load_changes(changed)
        if changed.num_rows > FEW_ROWS:
            self._spread()

    def collect(self) -> pa.Table:
        """Bring what has changed so far to the driver: `id`, the columns, and `deleted`."""
        if self._changed is None:
            return self.few.changed
        schema = pa.schema([*self._state.columns, pa.field(DELETED, pa.bool_())])
        rows = to_plain_types(self._changed.select(schema.names).toArrow()).cast(schema)
        return rows.add_column(0, ID, self._state.ids(rows))

    def changes(self, schema: pa.Schema) -> DataFrame | None:
        """Return the ledger rows to write, with `known` and `changed`; None if there are none, or only few."""
        if self._changed is None:
            return None
        columns = pa.schema([ID, *self._state.columns, pa.field(DELETED, pa.bool_())])
        identified = self._changed.mapInArrow(partial(_add_ids, self._state), from_arrow_schema(columns))
        names = self._state.values.names
        before = self._stored.select("id", *[F.col(f"`{name}`").alias(f"before {name}") for name in names])
        joined = identified.join(_sort_on_executors(before.withColumn("known", F.lit(True))), "id", "left")
        joined = joined.withColumn("known", F.coalesce("known", F.lit(False)))
        pairs = [
            (_comparable(value.name, value), _comparable(f"before {value.name}", value)) for value in self._state.values
        ]
        same = [value.eqNullSafe(earlier) for value, earlier in pairs]
        unchanged = F.col("known") & ~F.col(DELETED) & reduce(lambda left, right: left & right, same, F.lit(True))
        written = joined.where((F.col("known") | ~F.col(DELETED)) & ~unchanged)
        last = {name: F.when(F.col(DELETED), F.col(f"`before {name}`")).otherwise(F.col(f"`{name}`")) for name in names}
        written = written.withColumns({"state": F.lit(self._state.name), **last})
        written = written.select("id", "state", DELETED, *self._state.columns.names, "known")
        names = dict(zip(self._state.columns.names, self._state.stored.names, strict=True))
        return _in_columns(written.withColumnsRenamed(names), schema)

    def _frame(self, id_filter: IdFilter | None = None) -> DataFrame:
        """Return the `id` and the columns of the rows that are stored, all or those that match."""
        frame = self._opened.frame_of_state(self._state.name, self._state.stored, id_filter)
        return frame.withColumnsRenamed(dict(zip(self._state.stored.names, self._state.columns.names, strict=True)))

    def _nothing(self) -> ArrowState:
        state = self._state
        return ArrowState(
            state,
            lambda id_filter: state.rename_columns(self._opened.of_state(state.name, state.stored, id_filter)),
            lambda: self._written_at,
        )

    def _spread(self) -> None:
        """Continue with a frame, made of the few rows that have changed."""
        if self.few.changed.num_rows:
            self._changed = frame_of(self._stored.sparkSession, self.few.changed.drop_columns(["id"]))
            self.few = self._nothing()

    def _keys(self, keys: DataFrame | None, what: str) -> DataFrame:
        if keys is None:
            raise self._state.refusal(what, "needs keys", f"Give it {', '.join(self._state.keys.names)}.")
        return keys

    def _one_row(self) -> DataFrame:
        return self._stored.sparkSession.range(1).drop("id")

    def _cast_columns(self, columns: pa.Schema) -> list[Column]:
        types = from_arrow_schema(columns)
        return [F.col(f"`{name}`").cast(types[name].dataType).alias(name) for name in columns.names]

    def _conform(self, rows: DataFrame, columns: pa.Schema, what: str) -> DataFrame:
        self._state.require_columns(rows.columns, columns, what)
        return rows.select(*self._cast_columns(columns))

    def _with_values(self, keys: DataFrame) -> DataFrame:
        """Add the values of the state to rows with its keys; where it has no row, those of `get`."""
        names = self._state.keys.names
        frame = self.all().withColumn(HAS_ROW, F.lit(True))
        joined = keys.join(_sort_on_executors(frame), names, "left") if names else keys.join(frame, F.lit(True), "left")
        types = from_arrow_schema(self._state.columns)
        values = [
            self._fill_initial(value.name).cast(types[value.name].dataType).alias(value.name)
            for value in self._state.values
        ]
        return joined.select(*[F.col(f"`{name}`") for name in keys.columns], *values)

    def _fill_initial(self, name: str) -> Column:
        """Return a value of `get`: the initial one where the state has no row."""
        if name not in self._state.initial:
            return F.col(f"`{name}`")
        return F.when(F.col(f"`{HAS_ROW}`"), F.col(f"`{name}`")).otherwise(F.lit(self._state.initial[name]))

    def _without(self, rows: DataFrame, others: DataFrame) -> DataFrame:
        names = self._state.keys.names
        return rows.join(_sort_on_executors(others.select(names)), names, "left_anti") if names else rows.limit(0)

    def _change(self, new: DataFrame) -> None:
        self._spread()
        stays = None if self._changed is None else self._without(self._changed, new)
        self._changed = new if stays is None else stays.unionByName(new)

    def _aggregate(self, aggregation: Aggregation, types: Mapping[str, DataType]) -> Column:
        if aggregation.input is None:
            return F.count("*")
        value = F.col(f"`{aggregation.input}`")
        if aggregation.operation == "sum" and isinstance(types[aggregation.input], (IntegralType, DecimalType)):
            total = F.try_sum(value if isinstance(types[aggregation.input], DecimalType) else value.cast(EXACT))
            wrong = self._state.refusal(
                "combine", f"cannot compute {aggregation.value}: the sum has too many digits", ""
            )
            return F.when(total.isNull() & (F.count(value) > 0), F.raise_error(F.lit(str(wrong)))).otherwise(total)
        if aggregation.operation not in ("first", "last"):
            return {"sum": F.sum, "min": F.min, "max": F.max, "count": F.count}[aggregation.operation](value)
        if aggregation.by is None:
            example = f'{aggregation.value}=("{aggregation.input}", "{aggregation.operation}", "event_time")'
            hint = f"Write {example} or another column."
            raise self._state.refusal("combine", "takes the first or last of rows without an order", hint)
        order = F.when(value.isNotNull(), F.struct(F.col(f"`{aggregation.by}`"), value))
        return (F.min_by if aggregation.operation == "first" else F.max_by)(value, order)


def frame_of_depot(plan: MicrobatchPlan, arrived: Slice | None, source: Source) -> DataFrame:
    """Return the rows that arrived from a depot as a frame, with its columns even if there are none."""
    engine = cast("SparkEngine", plan.ledger.engine)
    if arrived is None:
        return frame_of(engine.session_at_work, source.no_rows())
    return arrived.rows.frame(engine.session_at_work)


def of_session(plan: MicrobatchPlan, rows: pa.Table) -> DataFrame:
    """Return rows as a frame of the session at work."""
    return frame_of(cast("SparkEngine", plan.ledger.engine).session_at_work, rows)


def frames_in_order(parts: Iterable[tuple[DataFrame, tuple[Any, ...]]], events: Sequence[pa.Table]) -> DataFrame:
    """Return messages and events in order; each frame of a depot comes with what determines its messages' times."""
    frames = []
    for frame, times in parts:
        rows = frame.select(*messages.COLUMNS, "version")
        columns = from_arrow_schema(pa.schema([*schema_of(rows), *ADDED]))
        frames.append(rows.mapInArrow(partial(_timing, times), columns))
    frames += [frame_of(frames[0].sparkSession, conform(rows, schema_of(frames[0]))) for rows in events]
    both = reduce(lambda left, right: left.unionByName(right), frames)
    return both.orderBy(*[F.col(name).asc_nulls_last() for name in ORDER])


def _timing(times: tuple[Any, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from with_processing_times(to_plain_types(pa.Table.from_batches([batch])), *times).to_batches()


def _sort_on_executors(rows: DataFrame) -> DataFrame:
    """Return rows that Spark joins by sorting them on the executors.

    Otherwise it may broadcast them because of their compressed size, and a million keys that compress well fill the
    driver's heap.
    """
    return rows.hint("merge")


def rows_to_commit(
    plan: MicrobatchPlan, frames: Sequence[DataFrame], others: Sequence[Rows], history: Mapping[str, object]
) -> MicrobatchResult:
    """Return the rows to commit as a frame: `frames` and other rows, wherever they are."""
    engine, schema = cast("SparkEngine", plan.ledger.engine), plan.primed.progress.schema
    filled = [
        other.frame(engine.session_at_work) for other in others if other.processed_on == "executors" or other.count
    ]
    every = [*frames, *(_in_columns(frame, schema) for frame in filled)]
    rows, counts = _count_rows(reduce(lambda left, right: left.unionByName(right), every))
    return MicrobatchResult(rows, counts, processed_on="executors", history=history)


def _in_columns(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return rows in all columns of the ledger, with `known` and `changed`; columns that they lack are NULL."""
    types, names = from_arrow_schema(schema), set(rows.columns)
    columns = [
        F.col(f"`{name}`").cast(types[name].dataType).alias(name)
        if name in names
        else F.lit(None).cast(types[name].dataType).alias(name)
        for name in schema.names
    ]
    return rows.select(*columns, "known", F.lit(True).alias(CHANGED))


def _count_rows(rows: DataFrame) -> tuple[DataFrame, MicrobatchCounts]:
    """Keep rows on the executors until the commit, and count them.

    Raises TopologyError for a duplicate key, or a key with NULL in it.
    """
    frame = persist_rows(rows)
    groups = frame.groupBy("state", "known", DELETED, "reason").agg(F.count("*").alias("count_all"))
    keys = frame.where("id IS NULL OR id LIKE 'state/%'").groupBy("id").agg(F.count("*").alias("times"))
    null = "id IS NULL OR instr(id, '%N') > 0"  # %N is NULL in an id, and nothing else
    if wrong := keys.where(f"times > 1 OR {null}").select(F.expr(null).alias("null")).limit(1).collect():
        what = "a row with NULL in its key" if wrong[0]["null"] else "a key twice"
        raise TopologyError(f"a function put {what}", "Put one row per key, and no NULL in keys.")
    return frame, MicrobatchCounts.combine(to_plain_types(groups.toArrow()))


def _comparable(column: str, declared: pa.Field) -> Column:
    """Return a column as Spark can compare it: one with a MAP, which it cannot, as text."""
    if "map<" not in str(declared.type):
        return F.col(f"`{column}`")
    return F.to_json(F.struct(F.col(f"`{column}`")), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"})


def _joining(
    state: State, aggregations: list[Aggregation], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Join aggregates with the previous values, as in functions on Arrow tables."""
    for batch in batches:
        rows = to_plain_types(pa.table(batch))
        columns = arrow_state.join_aggregates(state, rows, rows, aggregations)
        yield from columns.select(state.columns.names).cast(state.columns).to_batches()


def _add_ids(state: State, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the ledger's id to the columns of a state."""
    for batch in batches:
        rows = to_plain_types(pa.table(batch)).select([*state.columns.names, DELETED])
        keys = rows.select(state.keys.names).cast(state.keys) if state.keys.names else rows
        yield from rows.add_column(0, ID, state.ids(keys)).to_batches()

"""A state as a function that works with Spark DataFrames sees it, and the conversion of its result to ledger rows.

Everything stays on the executors: the rows of the state are a DataFrame, and so are the ledger rows made from the
function's result. Only counts go to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.columnar.arrow import plain
from windrow.engine.result import Counts, MicrobatchResult
from windrow.engine.spark.executors import kept
from windrow.engine.spark.frames import frame_of
from windrow.engine.spark.open_batches import SparkOpen
from windrow.errors import BrokenPromise, TopologyRefused
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.tables import CHANGED
from windrow.topology.state import DELETED, State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from windrow.engine.spark.engine import SparkEngine
    from windrow.runtime.algorithm import Plan
    from windrow.topology.functions import Changes
    from windrow.topology.microbatch import Microbatch


class FrameState:
    """The rows of a state before the microbatch as a DataFrame, and helpers for what a function returns."""

    def __init__(self, state: State, rows: DataFrame) -> None:
        """Wrap the rows, in the columns of the state."""
        self._state, self.rows = state, rows

    def upsert(self, new: DataFrame, **columns: Column) -> DataFrame:
        """Return the rows to write for the keys and values in `new`.

        A value given as an expression is computed over `new` joined with the rows before as `old` (NULL for new keys):
        `count=F.coalesce("old.count", F.lit(0)) + F.col("new.count")`. Raises TopologyRefused for a name that is not a
        value of the state.
        """
        self._state.require_values(columns)
        keys = self._state.keys.names
        same = [F.col(f"old.`{name}`") == F.col(f"new.`{name}`") for name in keys]
        joined = new.alias("new").join(self.rows.alias("old"), same, "left")
        kept_keys = [F.col(f"new.`{name}`").alias(name) for name in keys]
        return joined.select(
            *kept_keys, *[columns.get(name, F.col(f"new.`{name}`")).alias(name) for name in self._state.values.names]
        )

    def delete(self, keys: DataFrame) -> DataFrame:
        """Return the rows that delete keys."""
        nothing = [F.lit(None).alias(name) for name in self._state.values.names]
        return keys.select(*self._state.keys.names, *nothing, F.lit(True).alias(DELETED))


def changed_rows(state: State, returned: DataFrame, live: DataFrame, schema: pa.Schema) -> DataFrame:
    """Convert a function's result to ledger rows with `known` and `changed`; `live` are the rows of the state.

    Deleting a missing key has no effect. Raises TopologyRefused for columns that differ from the declared ones, or
    types that cannot be cast to the declared ones.
    """
    named = _named(state, returned)
    ids = pa.schema([pa.field("id", pa.string()), *state.columns, pa.field(DELETED, pa.bool_())])
    identified = named.mapInArrow(_identifying(state), from_arrow_schema(ids))
    known = live.select("id").withColumn("known", F.lit(True))
    joined = identified.join(known, "id", "left").withColumn("known", F.coalesce("known", F.lit(False)))
    joined = joined.where(f"known OR NOT {DELETED}")
    own = set(state.columns.names)
    types = from_arrow_schema(schema)
    columns = [F.col(f"`{name}`") if name in own else F.lit(None).cast(types[name].dataType).alias(name)
               for name in schema.names if name not in {"id", "state"}]  # fmt: skip
    written = F.when(F.col(DELETED), tables.GONE).otherwise(F.lit(state.name)).alias("state")
    rows = joined.select("id", written, *columns, "known", F.lit(True).alias(CHANGED))
    return rows.select([*schema.names, "known", CHANGED])


def changed(state: State, microbatch: Microbatch, plan: Plan) -> DataFrame:
    """Call the function of a state with DataFrames, and return the changed ledger rows."""
    engine, live = cast("SparkEngine", plan.engine), plan.primed.fence.open
    if not isinstance(live, SparkOpen):
        raise BrokenPromise("the states of a topology on Spark are read by Spark")

    def read(name: str) -> DataFrame:
        return live.frame_of_state(name).select(microbatch.states[name].columns.names)

    messages = engine.executor_input(plan.arrived, plan.primed.fence.schema, plan.microbatch).messages
    returned = state.function(replace(microbatch, messages=messages, read=read, wrap=FrameState))
    return changed_rows(state, returned, live.frame_of_state(state.name), plan.primed.progress.schema)


def processed(changes: Changes, here: pa.Table, plan: Plan, history: dict[str, object]) -> MicrobatchResult:
    """Combine the changes of functions with the rows that the driver has (`here`)."""
    engine = cast("SparkEngine", plan.engine)
    others = [frame_of(engine.session_at_work, here)] if here.num_rows else []
    if plan.arrived is not None:
        others += engine.executor_input(plan.arrived, plan.primed.fence.schema, plan.microbatch).extra
    frames = [*changes.frames, *(frame.withColumn(CHANGED, F.lit(True)) for frame in others)]
    rows, counts = counted(reduce(lambda one, other: one.unionByName(other), frames))
    return MicrobatchResult(rows, counts, Floors.empty(), path="executors", history=history)


def counted(rows: DataFrame) -> tuple[DataFrame, Counts]:
    """Keep rows on the executors until the commit, and count them.

    Raises TopologyRefused for a duplicate key, or a key with NULL in it.
    """
    held = kept(rows)
    groups = held.groupBy("state", "known", "reason").agg(F.count("*").alias("count_all"))
    keys = held.where("id IS NULL OR id LIKE 'state/%'").groupBy("id").agg(F.count("*").alias("times"))
    null = "id IS NULL OR instr(id, '%N') > 0"  # %N is NULL in an id, and nothing else
    if wrong := keys.where(f"times > 1 OR {null}").select(F.expr(null).alias("null")).limit(1).collect():
        what = "a row with NULL in its key" if wrong[0]["null"] else "a key twice"
        raise TopologyRefused(f"a function returned {what}", "Return one row per key, and no NULL in keys.")
    return held, Counts.combine(plain(groups.toArrow()))


def _named(state: State, returned: DataFrame) -> DataFrame:
    """Return the columns of a state, cast to their types, and `deleted`."""
    absent = [name for name in state.columns.names if name not in returned.columns]
    unknown = [name for name in returned.columns if name not in (*state.columns.names, DELETED)]
    if absent or unknown:
        raise TopologyRefused(
            f"the function of the state {state.name} returned the columns {', '.join(returned.columns)}",
            f"Return {', '.join(state.columns.names)}.",
        )
    types = from_arrow_schema(state.columns)
    cast = [F.col(f"`{name}`").cast(types[name].dataType).alias(name) for name in state.columns.names]
    gone = F.coalesce(F.col(DELETED).cast("boolean"), F.lit(False)) if DELETED in returned.columns else F.lit(False)
    return returned.select(*cast, gone.alias(DELETED))


def _identifying(state: State) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that adds the ledger's id to the columns of a state."""
    keys, name, columns = state.keys, state.name, state.columns

    def identifying(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = plain(pa.table(batch))
            values = [rows[field.name].cast(field.type).combine_chunks() for field in keys]
            ids = tables.identifier("state", pa.array([name] * rows.num_rows, pa.string()), *values)
            yield from rows.select([*columns.names, DELETED]).add_column(0, "id", ids).to_batches()

    return identifying

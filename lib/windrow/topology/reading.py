"""Read the states of a topology, as they are or as they were after a microbatch, and its history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from deltalake import DeltaTable

from windrow.columnar.arrow import in_columns, plain
from windrow.delta.locations import is_catalog_name, reference
from windrow.delta.table import filtered, history, open_table, reading
from windrow.engine.protocol import Engine
from windrow.errors import NotFound
from windrow.ledger.versions import latest
from windrow.model.commits import note_of
from windrow.model.tables import DELETED
from windrow.topology.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HINT = "`windrow history` lists the microbatches; the setting keep says how far back the log reaches."
Keys = Iterable[Mapping[str, Any]]
HISTORY = [
    "microbatch", "kind", "depot", "depot_version", "versions", "planned_id", "planned_at", "options_used",
    "events_fired", "rules", "appended",
]  # fmt: skip
OF_VERSION = ["id", "revision", DELETED]
Row = dict[str, Any]


def rows_of(location: str, state: State, keys: Keys | None, at: int | None, spark: SparkSession | None) -> pa.Table:
    """Return the rows of a state in the order of their keys, all or those of some keys, after microbatch `at`.

    A table in a catalog is read with Spark. Raises NotFound, TableMissing, TopologyRefused.
    """
    ids = None if keys is None else state.ids(keys_table(state, keys))
    if is_catalog_name(location):
        found = _with_spark(location, state, ids, at, spark)
    else:
        table = open_table(location, "ledger") if at is None else version_after(location, at)
        wanted: list[tuple[str, str, Any]] = [("state", "=", state.name)]
        wanted += [] if ids is None else [("id", "in", ids.to_pylist())]
        names = [name for name in state.columns.names if name in pa.schema(table.schema().to_arrow()).names]
        with reading(location, "ledger"):
            found = plain(filtered(table, wanted, [*OF_VERSION, *names]))
    found = in_columns(latest(found), state.columns)
    if not state.keys.names:
        return found
    return found.sort_by([(name, "ascending") for name in state.keys.names])


def keys_table(state: State, keys: Keys) -> pa.Table:
    """Return keys as a table of the key columns. Raises TopologyRefused."""
    listed = [dict(key) for key in keys]
    columns = {name: pa.array([key.get(name) for key in listed]) for name in state.keys.names}
    unknown = {name for key in listed for name in key if name not in state.keys.names}
    if unknown:
        hint = f"The keys of the state are {', '.join(state.keys.names) or 'none'}."
        raise state.refused("read", f"has no key {min(unknown)!r}", hint)
    return state.conformed(pa.table(columns), state.keys, "read")


def version_after(location: str, microbatch: int) -> DeltaTable:
    """Return the table of states after the commit of a microbatch; 0 is the new table. Raises NotFound."""
    table = open_table(location, "ledger")
    with reading(location, "ledger"):
        return DeltaTable(location, version=_version(history(table), microbatch))


def _version(commits: Iterable[Mapping[str, Any]], microbatch: int) -> int:
    """Return the version of a microbatch: the last one if the table was restored in between."""
    versions = (int(one["version"]) for one in commits if note_of(one).get("microbatch") == microbatch)
    found = 0 if microbatch == 0 else max(versions, default=None)
    if found is None:
        raise NotFound(f"the log of the states has no commit of microbatch {microbatch}", HINT)
    return found


def _with_spark(
    location: str, state: State, ids: pa.Array | None, at: int | None, spark: SparkSession | None
) -> pa.Table:
    from pyspark.sql import functions as F

    from windrow.engine.spark.session import find_session

    session = spark or find_session(location, location)
    reader = session.read
    if at is not None:
        rows = session.sql(f"DESCRIBE HISTORY {reference(location)}").select("version", "userMetadata").collect()
        reader = reader.option("versionAsOf", _version([row.asDict() for row in rows], at))
    frame = reader.table(reference(location)).where(F.col("state") == state.name)
    if ids is not None:
        frame = frame.where(F.col("id").isin(cast("list[str]", ids.to_pylist())))
    names = [name for name in state.columns.names if name in frame.columns]
    return plain(frame.select([*OF_VERSION, *names]).toArrow())


def history_rows(location: str, columns: list[str]) -> pa.Table:
    """Return columns of the history in order; a microbatch has one row for each depot that it read, or one alone."""
    with reading(location, "ledger"):
        table = open_table(location, "ledger")
        found = filtered(table, [("state", "=", "microbatch")], columns)
    return plain(found).sort_by([("microbatch", "ascending"), ("depot", "ascending")])


def history_of(engine: Engine) -> list[Row]:
    """Return the rows of the history in order."""
    rows: list[Row] = history_rows(str(engine.path_of("ledger")), HISTORY).to_pylist()
    return rows


def counting(rows: list[Row]) -> list[Row]:
    """Return the rows of the microbatches that read, accepted or fired, and that no rollback took back, in order.

    A rollback may go to a microbatch that an earlier rollback took back: then that one does not count.
    """
    kept, to = list[Row](), None
    for row in reversed(rows):
        if to is not None and row["microbatch"] > to:
            continue
        if row["kind"] == "rollback" and row["options_used"] is not None:
            to = json.loads(row["options_used"])["to_microbatch"]
        elif row["kind"] in ("data", "tick", "accept"):
            kept.append(row)
    return kept[::-1]

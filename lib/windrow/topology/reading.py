"""Read the states of a topology, as they are or as they were after a microbatch, and its history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from windrow.columnar.arrow import in_columns, plain
from windrow.delta.locations import is_catalog_name, reference
from windrow.delta.table import filtered, history, open_table, reading, table_files
from windrow.errors import NotFound
from windrow.ledger import Ledger
from windrow.ledger.versions import latest
from windrow.model.commits import note_of
from windrow.model.id_filter import IdFilter
from windrow.model.tables import DELETED
from windrow.topology.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HINT = "`windrow status --history 20` lists the microbatches; the setting keep says how far back the log reaches."
Keys = Iterable[Mapping[str, Any]]
HISTORY = [
    "microbatch", "kind", "depot", "depot_version", "versions", "planned_id", "planned_at", "options_used",
    "events_fired", "rules", "appended",
]  # fmt: skip
OF_VERSION = ["id", "revision", DELETED]
ROWS_AT_ONCE = 32_768
Row = dict[str, Any]


def rows_of(location: str, state: State, keys: Keys | None, at: int | None, spark: SparkSession | None) -> pa.Table:
    """Return the rows of a state in the order of their keys, all or those of some keys, after microbatch `at`.

    A table in a catalog is read with Spark. Raises NotFound, TableMissing, TopologyRefused.
    """
    under = None if keys is None else filter_of(state, keys)
    if is_catalog_name(location):
        found = _with_spark(location, state, under, at, spark)
    else:
        found = versions_of(open_table(location, "ledger") if at is None else version_after(location, at), state, under)
    versions = found if under is None else under.among(found)
    found = in_columns(latest(versions), state.columns)
    if not state.keys.names:
        return found
    return found.sort_by([(name, "ascending") for name in state.keys.names])


def versions_of(table: DeltaTable, state: State, under: IdFilter | None = None) -> pa.Table:
    """Return the versions of the rows of a state, all or those under some keys and perhaps others, in their columns."""
    names = [name for name in state.columns.names if name in pa.schema(table.schema().to_arrow()).names]
    with reading(table.table_uri, "ledger"):
        return plain(filtered(table, _conditions(state, under), [*OF_VERSION, *names]))


def pieces_of(location: str, state: State, spark: SparkSession | None) -> Iterator[pa.Table]:
    """Yield the versions of all rows of a state in pieces; a table in a catalog is read with Spark, in one piece."""
    if is_catalog_name(location):
        yield _with_spark(location, state, None, None, spark)
        return
    table = open_table(location, "ledger")
    dataset = table.to_pyarrow_dataset(filesystem=table_files(table.table_uri, table))
    names = [name for name in [*OF_VERSION, *state.columns.names] if name in dataset.schema.names]
    yield plain(dataset.schema.empty_table().select(names))
    with reading(location, "ledger"):
        for file in dataset.get_fragments(ds.field("state") == state.name):
            rows = file.scanner(dataset.schema, columns=names, batch_size=ROWS_AT_ONCE, batch_readahead=1)
            yield from (plain(pa.Table.from_batches([batch])) for batch in rows.to_batches())


def filter_of(state: State, keys: Keys) -> IdFilter:
    """Return the filter of the rows under keys, which all have the same first key columns. Raises TopologyRefused."""
    listed = [dict(key) for key in keys]
    unknown = {name for key in listed for name in key if name not in state.keys.names}
    if unknown:
        hint = f"The keys of the state are {', '.join(state.keys.names) or 'none'}."
        raise state.refused("read", f"has no key {min(unknown)!r}", hint)
    given = [name for name in state.keys.names if not listed or any(name in key for key in listed)]
    return state.under(pa.table({name: pa.array([key.get(name) for key in listed]) for name in given}), "read")


def _conditions(state: State, under: IdFilter | None) -> list[list[tuple[str, str, Any]]]:
    """Return filters of the rows of a state, one of which a row under the keys passes."""
    own: tuple[str, str, Any] = ("state", "=", state.name)
    if under is None:
        return [[own]]
    if under.components is None:
        return [[own, ("id", "in", under.ids.to_pylist() or [""])]]  # Arrow knows no type of an empty list
    return [[own, ("id", ">=", first), ("id", "<", stop)] for first, stop in under.spans()]


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
    location: str, state: State, under: IdFilter | None, at: int | None, spark: SparkSession | None
) -> pa.Table:
    from pyspark.sql import functions as F

    from windrow.engine.spark.session import find_session
    from windrow.ledger.open_batches import matching

    session = spark or find_session(location, location)
    reader = session.read
    if at is not None:
        rows = session.sql(f"DESCRIBE HISTORY {reference(location)}").select("version", "userMetadata").collect()
        reader = reader.option("versionAsOf", _version([row.asDict() for row in rows], at))
    frame = reader.table(reference(location)).where(F.col("state") == state.name)
    if under is not None:
        frame = matching(frame, under)
    names = [name for name in state.columns.names if name in frame.columns]
    return plain(frame.select([*OF_VERSION, *names]).toArrow())


def history_rows(location: str, columns: list[str]) -> pa.Table:
    """Return columns of the history in order; a microbatch has one row for each depot that it read, or one alone."""
    with reading(location, "ledger"):
        table = open_table(location, "ledger")
        found = filtered(table, [("state", "=", "microbatch")], columns)
    return plain(found).sort_by([("microbatch", "ascending"), ("depot", "ascending")])


def history_of(ledger: Ledger) -> list[Row]:
    """Return the rows of the history in order."""
    rows: list[Row] = history_rows(str(ledger.path), HISTORY).to_pylist()
    return rows


def first_read(ledger: Ledger) -> dict[str, int]:
    """Return the first version of each depot that was ever read, from the history."""
    rows = history_rows(str(ledger.path), ["microbatch", "depot", "versions"]).combine_chunks()
    versions = rows["versions"].combine_chunks()
    read = pa.table(
        {
            "depot": rows["depot"].take(pc.list_parent_indices(versions)),
            "version": pc.list_flatten(versions).field("version"),
        }
    )
    first = read.group_by("depot").aggregate([("version", "min")])
    return dict(zip(first["depot"].to_pylist(), first["version_min"].to_pylist(), strict=True))


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

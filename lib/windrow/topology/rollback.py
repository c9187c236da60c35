"""Rollback: restore the states of a topology to an earlier microbatch, and read the depots again from there.

A rollback is a microbatch, fenced and recorded like any other: one commit writes the rows of that time, and the
positions and clocks of the depots. The history stays and records the rollback. Options do not change. A depot that was
added later is read from the version at which it began according to the history, since `end` is another version by now.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.columnar.arrow import plain, text
from windrow.delta.table import history, open_table, reading
from windrow.engine.result import Counts, MicrobatchResult
from windrow.errors import DepotUnreadable, NotFound
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.runtime.opening import DepotReader
from windrow.runtime.progress import POSITION, LedgerState, Reached, position_row


def taken_back(primed: LedgerState, inlets: Sequence[DepotReader], to: int) -> tuple[MicrobatchResult, Reached]:
    """Return the rows that restore the states to microbatch `to`, and the position in `primed.depot`.

    Raises NotFound if Delta's log does not reach back that far, DepotUnreadable if a depot's log does not.
    """
    schema = primed.progress.schema
    now = pa.concat_tables([primed.fence.rows, primed.fence.open.wanted(None)])
    location = str(inlets[0].engine.path_of("ledger"))
    then = _live_after(location, to, schema)
    read_then = _positions(then) if to else {}  # before the first microbatch a depot may have begun elsewhere
    positions = _begun(_positions(now), _first_read(location)) | read_then  # also of depots that it reads no more
    for inlet in inlets:
        _require_readable(inlet, positions[str(inlet.name)])
    others = [position_row(schema, name, at) for name, at in positions.items() if name != primed.depot]
    rows = pa.concat_tables([_restored(then), *others])
    left = _restored(now)
    gone = left.filter(pc.invert(pc.is_in(left["id"], rows["id"].combine_chunks())))
    gone = gone.set_column(gone.schema.get_field_index("state"), schema.field("state"), _all(tables.GONE, gone))
    written = pa.concat_tables([rows, gone])
    known = pc.is_in(written["id"], now["id"].combine_chunks())
    written = written.append_column("known", known)
    return MicrobatchResult(written, Counts.of(written), Floors.empty()), positions[str(primed.depot)]


def _live_after(location: str, to: int, schema: pa.Schema) -> pa.Table:
    """Return the live rows after the commit of a microbatch; 0 is the new table."""
    table = open_table(location, "ledger")
    with reading(location, "ledger"):
        version = 0 if to == 0 else max(_commits_of(table, to), default=None)
        if version is None:
            raise NotFound(
                f"the log of the states has no commit of microbatch {to}",
                "`windrow history` lists the microbatches; the setting keep says how far back the log reaches.",
            )
        found = DeltaTable(location, version=version).to_pyarrow_dataset().to_table()
    absent = [field for field in schema if field.name not in found.column_names]
    for field in absent:  # of a state that was declared later
        found = found.append_column(field, pa.nulls(found.num_rows, field.type))
    rows = plain(found.select(schema.names)).cast(schema)
    return rows.filter(tables.are_live(rows["state"], schema.names))


def _commits_of(table: DeltaTable, microbatch: int) -> Iterator[int]:
    """Yield the versions in which a microbatch was committed: more than one if the table was restored in between."""
    return (int(commit["version"]) for commit in history(table) if _microbatch(commit) == microbatch)


def _microbatch(commit: Mapping[str, Any]) -> int | None:
    """Return the number of the microbatch of a commit, None for a commit of another kind."""
    try:
        found: int | None = json.loads(commit["userMetadata"]).get("microbatch")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return found


def _positions(rows: pa.Table) -> dict[str, Reached]:
    """Return the position in each depot."""
    kept = rows.filter(pc.starts_with(rows["id"], "depot/"))
    return {row["depot"]: Reached.of(row) for row in kept.select(["depot", *POSITION]).to_pylist()}


def _begun(positions: Mapping[str, Reached], first: Mapping[str, int]) -> dict[str, Reached]:
    """Return the positions before the first read; where reading began is taken from the history."""
    return {
        name: replace(at, depot_version=first[name] - 1, commit_fingerprint=None) if name in first else at
        for name, at in positions.items()
    }


def _first_read(location: str) -> dict[str, int]:
    """Return the first version of each depot that was ever read, from the history."""
    with reading(location, "ledger"):
        table = open_table(location, "ledger")
        found = table.to_pyarrow_table(filters=[("state", "=", "microbatch")], columns=["depot", "versions"])
    rows = plain(found).combine_chunks()
    versions = rows["versions"].combine_chunks()
    read = pa.table(
        {
            "depot": rows["depot"].take(pc.list_parent_indices(versions)),
            "version": pc.list_flatten(versions).field("version"),
        }
    )
    first = read.group_by("depot").aggregate([("version", "min")])
    return dict(zip(first["depot"].to_pylist(), first["version_min"].to_pylist(), strict=True))


def _restored(rows: pa.Table) -> pa.Table:
    """Return the rows that a rollback restores: all but the progress row, positions and options."""
    own = pc.or_(pc.equal(rows["id"], text(tables.PROGRESS)), pc.starts_with(rows["id"], "depot/"))
    return rows.filter(pc.invert(pc.or_(own, pc.equal(rows["state"], text("option")))))


def _all(value: str, rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), rows.num_rows)


def _require_readable(inlet: DepotReader, reached: Reached) -> None:
    """Raise DepotUnreadable if the log of a depot no longer has the versions since then."""
    engine = inlet.engine
    if reached.depot_version < engine.depot().version:
        following = reached.depot_version + 1
        commits = engine.depot_commits(following)
        if not commits or commits[0].version != following:
            raise DepotUnreadable(
                f"version {following} of the depot {inlet.name}, which comes next, is no longer in its log",
                "Roll back to a later microbatch.",
            )

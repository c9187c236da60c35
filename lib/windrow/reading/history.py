"""Read the history of a ledger as an Arrow table: a row for each microbatch, with its phases and lag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.errors import NotFound
from windrow.model.messages import microseconds
from windrow.reading.delta import Ledger, open_ledger, within

RECORDED = (
    "microbatch, attempt, kind, messages_read AS messages, accepted, rejected, opened, closed, depot_version, "
    "array_length(versions) AS depot_versions, engine, path, commit_form, started_at, prime_ms, plan_ms, process_ms, "
    "clocks"
)
MOST_COMMITS = 2_000  # each is a file of the log to open


def history(ledger: str, begin: int | None = None, end: int | None = None) -> pa.Table:
    """Return the microbatches that started in [begin, end) (microseconds), in their order.

    Three columns are added. `newest_ms` and `oldest_ms` are how long before the start the newest message of a source
    had arrived: of the source furthest ahead, and of the one furthest behind. `commit_ms` is the time from the end of
    the other phases to the commit in Delta's log. They are NULL where this is unknown. Raises NotFound when there is no
    microbatch, TableMissing, TableRefused.
    """
    book = open_ledger(ledger)
    bounded = within("started_at", "started_at", begin, end)
    rows = plain(book.rows("microbatch", RECORDED, bounded, "ORDER BY microbatch"))
    if not rows.num_rows:
        raise NotFound("the ledger has no microbatch in this range", "Choose an earlier --from, or run `windrow run`.")
    newest, oldest = _lags(rows)
    columns = {"newest_ms": newest, "oldest_ms": oldest, "commit_ms": _commits(book, rows)}
    recorded = {name: rows[name] for name in rows.column_names if name != "clocks"}
    return pa.table(recorded | columns)


def _lags(rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Return the least and the greatest lag of the clocks that each data microbatch moved, in milliseconds."""
    lists = rows["clocks"].combine_chunks()
    moved = pc.struct_field(pc.list_flatten(lists), "clock")
    known = pc.is_valid(moved)
    clocks, parents = microseconds(moved.filter(known)), pc.list_parent_indices(lists).filter(known).to_numpy()
    started = microseconds(rows["started_at"])
    behind = (started[parents] - clocks) / 1e3
    least, most = (np.full(rows.num_rows, start) for start in (np.inf, -np.inf))
    np.minimum.at(least, parents, behind)
    np.maximum.at(most, parents, behind)
    unknown = ~np.isfinite(least) | pc.not_equal(rows["kind"], "data").to_numpy()
    return pa.array(least, mask=unknown), pa.array(most, mask=unknown)


def _commits(book: Ledger, rows: pa.Table) -> pa.Array:
    """Return the milliseconds from the end of the last phase to the commit in Delta's log; NULL if it is gone."""
    noted = [note for note in map(_note, book.table.history(MOST_COMMITS)) if note]  # the latest first
    numbers, first = np.unique(np.array([number for number, _ in noted], np.int64), return_index=True)
    stamps = np.array([stamp for _, stamp in noted], np.float64)[first]
    phases = [pc.fill_null(rows[name], 0).to_numpy() for name in ("prime_ms", "plan_ms", "process_ms")]
    ready = microseconds(rows["started_at"]) / 1e3 + sum(phases)
    asked = rows["microbatch"].to_numpy()
    place = np.searchsorted(numbers, asked)
    known = np.isin(asked, numbers)
    at = np.append(stamps, np.nan)[np.where(known, place, len(stamps))]
    return pa.array(np.maximum(at - ready, 0), mask=~known)


def _note(commit: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the microbatch of a commit and its time, in milliseconds since the epoch."""
    try:
        return int(json.loads(commit["userMetadata"])["microbatch"]), int(commit["timestamp"])
    except (KeyError, TypeError, ValueError):
        return None

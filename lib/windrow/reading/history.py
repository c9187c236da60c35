"""Read the history of a ledger as an Arrow table: a row for each microbatch, with its phases and lag."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFoundError
from windrow.model.commits import note_of
from windrow.reading.tables import Ledger, open_ledger, overlap_condition

HISTORY = """
SELECT h.microbatch, attempt, kind, messages_read AS message_count, accepted, rejected, opened, closed, depot_version,
    coalesce(len(versions), 0) AS depot_versions, engine, processed_on, commit_mode, started_at,
    prime_ms, plan_ms, process_ms,{of_topology}
    (epoch_us(started_at) - newest) / 1000 AS newest_ms,
    (epoch_us(started_at) - oldest) / 1000 AS oldest_ms
FROM ledger AS h
LEFT JOIN (
    SELECT microbatch, max(epoch_us(moved['clock'])) AS newest, min(epoch_us(moved['clock'])) AS oldest
    FROM (
        SELECT microbatch, unnest(clocks) AS moved
        FROM ledger WHERE kind = 'data' AND {bounded}
    ) AS each GROUP BY microbatch
) AS m ON m.microbatch = h.microbatch
WHERE {bounded}
ORDER BY h.microbatch{in_order}
"""
OF_TOPOLOGY = " rules, depot, planned_microbatch, planned_at, events_fired, options_used, appended,"
LATER = ("migrated", "overtook")
MAX_COMMITS = 2_000  # each is a file of the log to open


def history(ledger: str | Ledger, start: int | None = None, end: int | None = None) -> pa.Table:
    """Return the microbatches that started in [start, end) (microseconds), in order.

    A microbatch of a topology has a row for each depot it read, or a single row, with the columns that topologies add.

    Three columns are added. `newest_ms` and `oldest_ms` are how long before the start the newest message of a source
    had arrived, for the source furthest ahead and the one furthest behind. `commit_ms` is the time from the end of
    the other phases to the commit in Delta's log. They are NULL where this is unknown. Raises NotFoundError when there
    is no microbatch, TableMissingError, IncompatibleTableError.
    """
    book = ledger if isinstance(ledger, Ledger) else open_ledger(ledger)
    bounded = overlap_condition("started_at", "started_at", start, end)
    columns, then = (OF_TOPOLOGY, ", depot") if book.of_topology else ("", "")
    for name in LATER if book.of_topology else ():  # a table not extended since then lacks these columns
        columns += f" {name}," if name in book.names else f" NULL::VARCHAR[] AS {name},"
    rows = book.query(HISTORY.format(bounded=bounded, of_topology=columns, in_order=then), "microbatch")
    if not rows.num_rows:
        raise NotFoundError(
            "the ledger has no microbatch in this range", "Choose an earlier start, or run `windrow run`."
        )
    return rows.append_column("commit_ms", _commits(book, rows))


def _commits(book: Ledger, rows: pa.Table) -> pa.ChunkedArray:
    """Return the milliseconds from the end of the last phase to the commit in Delta's log; NULL if it is gone."""
    commits = reversed(book.table.history(MAX_COMMITS))
    stamps = {note_of(commit).get("microbatch"): commit.get("timestamp") for commit in commits}  # of the latest commit
    at = pa.array([stamps.get(number) for number in rows["microbatch"].to_pylist()], pa.float64())
    ready = pc.divide(rows["started_at"].cast(pa.int64()), 1e3)
    for name in ("prime_ms", "plan_ms", "process_ms"):
        ready = pc.add(ready, pc.fill_null(rows[name], 0))
    return pc.max_element_wise(pc.subtract(at, ready), 0, skip_nulls=False)

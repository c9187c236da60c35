"""Read a time range of the ledger as Arrow tables: batches with messages, and rejected messages, of a few streams."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from windrow.errors import NotFoundError
from windrow.model import tables
from windrow.reading.tables import Ledger, equal, open_ledger, overlap_condition

MESSAGES = "sum(CASE state WHEN 'rejected' THEN 1 ELSE message_count END)"

# Messages in batches count at the end of their window, rejected ones at their processing time.
RECENT = """
SELECT epoch_us(min(stamp)) AS start, epoch_us(max(stamp)) AS stop FROM (
    SELECT stamp, messages, sum(messages) OVER (ORDER BY stamp DESC ROWS UNBOUNDED PRECEDING) AS total FROM (
        SELECT state, CASE state WHEN 'rejected' THEN processing_time ELSE window_end END AS stamp,
            CASE state WHEN 'rejected' THEN 1 ELSE message_count END AS messages,
            max(CASE state WHEN 'rejected' THEN processing_time END) OVER () AS last
        FROM ledger WHERE {condition}
    ) AS each WHERE stamp IS NOT NULL AND ({rejected} OR stamp <= last)
) AS counted WHERE total - messages < {most:d}
"""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Batches and rejected messages of the `chosen` streams; `stream_count` counts all with messages in the range."""

    batches: pa.Table
    rejected: pa.Table
    chosen: tuple[tuple[str, str], ...]
    stream_count: int


def time_range(
    ledger: str,
    key: str | None = None,
    source: str | None = None,
    start: int | None = None,
    end: int | None = None,
    most: int = 6,
) -> TimeRange:
    """Read the `most` streams with the most messages, of a key or source if given, in [start, end) (microseconds).

    A batch belongs to the range if the time from its window's start to its timeout overlaps it; a rejected message if
    the time from event time to processing time does. Raises NotFoundError if none does, TableMissingError,
    IncompatibleTableError.
    """
    book = open_ledger(ledger)
    in_batches = overlap_condition("window_start", "timeout_at", start, end)
    arrived = "coalesce(processing_time, received_at)"
    refused = overlap_condition(f"least(event_time, {arrived})", f"greatest(event_time, {arrived})", start, end)
    condition = equal({"key": key, "source": source})
    there = f"CASE state WHEN 'rejected' THEN {refused} ELSE {in_batches} END AND {condition}"
    busiest = book.rows(
        ("open", "closed", "rejected"),
        f"source, key, {MESSAGES} AS messages, count(*) OVER () AS streams",
        f"source IS NOT NULL AND key IS NOT NULL AND {there}",
        f"GROUP BY source, key ORDER BY 3 DESC, source, key LIMIT {most:d}",
    ).to_pylist()
    if not busiest:
        raise _nothing(key, source, bounded=start is not None or end is not None)
    among = " OR ".join(equal({name: row[name] for name in ("source", "key")}) for row in busiest)
    batches, rejected = (pa.schema(fields(book.payload)) for fields in (tables.batch_fields, tables.rejected_fields))
    return TimeRange(
        batches=_read(book, ("open", "closed"), batches, f"({among}) AND {in_batches}"),
        rejected=_read(book, ("rejected",), rejected, f"({among}) AND {refused}"),
        chosen=tuple((row["source"], row["key"]) for row in busiest),
        stream_count=busiest[0]["streams"],
    )


def recent_stretch(book: Ledger, source: str | None, most: int) -> tuple[int, int]:
    """Return the range [start, end) (microseconds) of about `most` messages: the last of all sources, or of one source.

    With a `source`, the range ends at its last rejection. Times are those of sources' clocks. Raises NotFoundError when
    there is no message.
    """
    states = ("open", "closed", "rejected")
    rejected = "true" if source is None else "false"
    query = RECENT.format(condition=equal({"source": source}), rejected=rejected, most=most)
    [row] = book.query(query, states).to_pylist()
    if row["start"] is None:
        raise _nothing(None, source, bounded=False)
    margin = max((row["stop"] - row["start"]) // 20, 1_000_000)
    return row["start"] - margin, row["stop"] + margin


def _read(book: Ledger, states: tuple[str, ...], schema: pa.Schema, where: str) -> pa.Table:
    """Return rows in plain types, which Arrow can group and draw."""
    return book.rows(states, ", ".join(schema.names), where).cast(schema)


def _nothing(key: str | None, source: str | None, bounded: bool) -> NotFoundError:
    of = "".join(f" of {name} {value!r}" for name, value in (("key", key), ("source", source)) if value is not None)
    there = " in this time range" if bounded else ""
    hint = "Choose an earlier --from or a later --to." if bounded else "`windrow show` lists what there is."
    return NotFoundError(f"the ledger has no message{of}{there}", hint)

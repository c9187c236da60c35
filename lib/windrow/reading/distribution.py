"""Count how batches and delays are distributed: batch sizes, how late messages came, how long they waited in a batch.

Messages are counted piece by piece as they are read, so only the counts stay in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.errors import NotFound
from windrow.reading.delta import Ledger, equal, open_ledger, recorded_rules, within

SIZES = ("source", "state", "opened_by", "close_reason", "message_count", "bytes")
MESSAGE = (
    "source, closed_at, unnest(messages)['type'] AS type, "
    "unnest(messages)['event_time'] AS event_time, unnest(messages)['received_at'] AS received_at"
)
DELAYS = pa.schema(
    [("name", pa.string()), ("outcome", pa.string()), ("delay_ms", pa.int64()), ("messages", pa.int64())]
)
WAITS = pa.schema([("wait_ms", pa.int64()), ("messages", pa.int64())])


@dataclass(frozen=True, slots=True)
class Distribution:
    """Batches by size, and messages counted by delay and by wait, in whole milliseconds (floored).

    `sizes` has a row for each batch. `delays` counts by `name` (the source, or the type if there is only one source),
    `outcome` (accepted, or the reason of the rejection) and `delay_ms` (arrival minus event time). `waits` counts by
    `wait_ms` (from arrival until the batch closed). `max_delay_us` and `max_leap_us` are the rules in force.
    """

    sizes: pa.Table
    delays: pa.Table
    waits: pa.Table
    by: str
    max_delay_us: int
    max_leap_us: int

    def messages(self) -> dict[str, int]:
        """Return the number of messages by outcome; a message that lacks one of both times is not counted."""
        counted = self.delays.group_by("outcome").aggregate([("messages", "sum")])
        return dict(zip(*(counted[name].to_pylist() for name in ("outcome", "messages_sum")), strict=True))


def distribution(
    ledger: str, key: str | None = None, source: str | None = None, begin: int | None = None, end: int | None = None
) -> Distribution:
    """Read batches with a window start in [begin, end) (microseconds), and rejected messages of that event time.

    Raises NotFound when there is none, TableMissing, TableRefused.
    """
    book = open_ledger(ledger)
    rules = recorded_rules(book.progress().rules)
    asked = equal({"key": key, "source": source})
    in_batches, refused = (
        f"{asked} AND {within(column, column, begin, end)}" for column in ("window_start", "event_time")
    )
    sizes = plain(book.rows(("open", "closed"), ", ".join(SIZES), in_batches))
    refusing = plain(book.rows("rejected", "DISTINCT source", refused))
    if not sizes.num_rows + refusing.num_rows:
        raise NotFound("the ledger has no such batch or rejected message", "`windrow show` lists what there is.")
    sources = pa.concat_tables([sizes.select(["source"]), refusing])["source"]
    by = "source" if pc.count_distinct(sources).as_py() > 1 else "type"
    accepted, waits = _accepted(book, in_batches, by)
    content = "source, type, reason, event_time, received_at"
    rejected = (_delays(one, by, one["reason"]) for one in _pieces(book, "rejected", content, refused))
    return Distribution(
        sizes=sizes,
        delays=_sum(pa.concat_tables([*accepted, *rejected])),
        waits=waits,
        by=by,
        max_delay_us=rules["max_delay"],
        max_leap_us=rules["max_leap"],
    )


def _accepted(book: Ledger, where: str, by: str) -> tuple[list[pa.Table], pa.Table]:
    """Count the messages in batches by delay, and those in closed ones by wait."""
    delays, waits = [DELAYS.empty_table()], [WAITS.empty_table()]
    for messages in _pieces(book, ("open", "closed"), MESSAGE, where):
        delays.append(_delays(messages, by, pa.repeat("accepted", messages.num_rows)))
        closed = messages.filter(pc.is_valid(messages["closed_at"]))
        wait = {"wait_ms": _milliseconds(closed, "received_at", "closed_at"), "messages": pa.repeat(1, closed.num_rows)}
        waits.append(_sum(pa.table(wait)))
    return delays, _sum(pa.concat_tables(waits))


def _pieces(book: Ledger, states: str | tuple[str, ...], columns: str, where: str) -> Iterator[pa.Table]:
    for piece in book.pieces(states, columns, where):
        yield plain(pa.Table.from_batches([piece]))


def _delays(messages: pa.Table, by: str, outcome: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Count messages by delay; those that lack one of both times are left out."""
    known = pc.and_(pc.is_valid(messages["event_time"]), pc.is_valid(messages["received_at"]))
    timed = messages.append_column("outcome", outcome).filter(known)
    columns = {
        "name": pc.fill_null(timed[by], ""),
        "outcome": timed["outcome"],
        "delay_ms": _milliseconds(timed, "event_time", "received_at"),
        "messages": pa.repeat(1, timed.num_rows),
    }
    return _sum(pa.table(columns))


def _milliseconds(table: pa.Table, first: str, last: str) -> pa.Array:
    """Return the whole milliseconds from one time to another, floored."""
    span = pc.subtract(table[last].cast(pa.int64()), table[first].cast(pa.int64()))
    return pa.array(np.floor_divide(span.to_numpy(), 1_000))


def _sum(counts: pa.Table) -> pa.Table:
    """Add up the counts of rows that are otherwise equal, and sort them."""
    names = [name for name in counts.column_names if name != "messages"]
    summed = counts.group_by(names).aggregate([("messages", "sum")]).rename_columns([*names, "messages"])
    return summed.sort_by([(name, "ascending") for name in names])

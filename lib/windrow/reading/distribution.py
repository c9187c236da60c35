"""Count how batches and delays are distributed: batch sizes, how late messages came, how long they waited in a batch.

Messages are counted as they are read, so only the counts stay in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFoundError
from windrow.reading.tables import equal, open_ledger, overlap_condition, recorded_rules

SIZES = ("source", "state", "open_reason", "close_reason", "message_count", "bytes")
DELAY = pa.schema([("name", pa.string()), ("outcome", pa.string()), ("delay_ms", pa.int64()), ("messages", pa.int64())])
WAIT = pa.schema([("wait_ms", pa.int64()), ("messages", pa.int64())])
# Messages that lack either time are not counted. Division truncates, so the remainder is subtracted first.
MILLISECONDS = "CAST((span - ((span % 1000) + 1000) % 1000) // 1000 AS BIGINT)"
DELAYS = """
SELECT coalesce({by}, '') AS name, outcome, {milliseconds} AS delay_ms, count(*) AS messages
FROM (
    SELECT source, one.type AS type, 'accepted' AS outcome,
        CAST(epoch_us(one.received_at) AS HUGEINT) - epoch_us(one.event_time) AS span
    FROM (
        SELECT source, unnest(messages) AS one
        FROM ledger WHERE state IN ('open', 'closed') AND {in_batches}
    ) AS accepted
    UNION ALL
    SELECT source, type, reason, CAST(epoch_us(received_at) AS HUGEINT) - epoch_us(event_time)
    FROM ledger WHERE state = 'rejected' AND {refused}
) AS arrived WHERE span IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
WAITS = """
SELECT {milliseconds} AS wait_ms, count(*) AS messages
FROM (
    SELECT CAST(epoch_us(closed_at) AS HUGEINT) - epoch_us(unnest(messages).received_at) AS span
    FROM ledger WHERE state = 'closed' AND {in_batches}
) AS closed WHERE span IS NOT NULL GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Batches by size, and messages counted by delay and by wait, in whole milliseconds (floored).

    `sizes` has a row for each batch. `delays` counts by `name` (the source, or the type if there is only one source),
    `outcome` (accepted, or the reason of the rejection) and `delay_ms` (arrival minus event time). `waits` counts by
    `wait_ms` (from arrival until the batch closed). `max_delay_us` and `max_lead_us` are the rules in force.
    """

    sizes: pa.Table
    delays: pa.Table
    waits: pa.Table
    by: str
    max_delay_us: int
    max_lead_us: int

    def messages(self) -> dict[str, int]:
        """Return the number of messages by outcome; a message that lacks either time is not counted."""
        counted = self.delays.group_by("outcome").aggregate([("messages", "sum")])
        return dict(zip(*(counted[name].to_pylist() for name in ("outcome", "messages_sum")), strict=True))


def distribution(
    ledger: str, key: str | None = None, source: str | None = None, start: int | None = None, end: int | None = None
) -> Distribution:
    """Read batches with a window start in [start, end) (microseconds), and rejected messages with an event time in it.

    Raises NotFoundError when there is none, TableMissingError, IncompatibleTableError.
    """
    book = open_ledger(ledger)
    rules = recorded_rules(book.progress().rules)
    condition = equal({"key": key, "source": source})
    in_batches, refused = (
        f"{condition} AND {overlap_condition(column, column, start, end)}" for column in ("window_start", "event_time")
    )
    sizes = book.rows(("open", "closed"), ", ".join(SIZES), in_batches)
    refusing = book.rows("rejected", "DISTINCT source", refused)
    if not sizes.num_rows + refusing.num_rows:
        raise NotFoundError("the ledger has no such batch or rejected message", "`windrow show` lists what there is.")
    sources = pa.concat_tables([sizes.select(["source"]), refusing])["source"]
    by = "source" if pc.count_distinct(sources).as_py() > 1 else "type"
    delays = DELAYS.format(by=by, milliseconds=MILLISECONDS, in_batches=in_batches, refused=refused)
    return Distribution(
        sizes=sizes,
        delays=book.query(delays, ("open", "closed", "rejected")).cast(DELAY),
        waits=book.query(WAITS.format(milliseconds=MILLISECONDS, in_batches=in_batches), "closed").cast(WAIT),
        by=by,
        max_delay_us=rules["max_delay"],
        max_lead_us=rules["max_lead"],
    )

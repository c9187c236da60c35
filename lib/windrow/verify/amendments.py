"""Check amendments: the amended batches have exactly the messages of what they take the place of."""

from __future__ import annotations

from collections.abc import Iterator

from windrow.reading.tables import Ledger
from windrow.verify.report import Difference, difference_in_rows

STATES = ("closed", "amended", "rejected", "superseded")
MESSAGE = ("type", "event_time", "received_at", "sequence", "payload")
# What is superseded, by which amendment; `old` and `new` are its messages on both sides.
MESSAGES = """
WITH gone AS (SELECT superseded_id AS gone_id, microbatch AS number FROM ledger WHERE state = 'superseded'),
old AS (
    SELECT number, source, key, {message} FROM (
        SELECT number, source, key, unnest(messages) AS m FROM ledger JOIN gone ON id = gone_id
        WHERE state IN ('closed', 'amended'))
    UNION ALL SELECT number, source, key, {names} FROM ledger JOIN gone ON id = gone_id WHERE state = 'rejected'
),
new AS (
    SELECT closed_microbatch AS number, source, key, {message} FROM (
        SELECT closed_microbatch, source, key, unnest(messages) AS m FROM ledger WHERE state = 'amended')
)
SELECT number AS amendment, source, key, type, event_time, sum(sign)::BIGINT AS difference FROM (
    SELECT *, -1 AS sign FROM old UNION ALL SELECT *, 1 FROM new
) GROUP BY number, source, key, {names} HAVING sum(sign) <> 0 ORDER BY ALL
""".format(message=", ".join(f"m.{name} AS {name}" for name in MESSAGE), names=", ".join(MESSAGE))
# Ids that are superseded but not there, more than once, or by an amended batch that is not there.
IDS = """
SELECT gone.superseded_id AS id, count(*) AS times, bool_and(there.id IS NOT NULL) AS is_there,
    bool_and(heir.id IS NOT NULL) AS by_an_amended_batch
FROM ledger gone
LEFT JOIN ledger there ON there.id = gone.superseded_id AND there.state IN ('closed', 'amended', 'rejected')
LEFT JOIN ledger heir ON heir.id = gone.superseded_by AND heir.state = 'amended'
WHERE gone.state = 'superseded' GROUP BY gone.superseded_id

HAVING times > 1 OR NOT is_there OR NOT by_an_amended_batch ORDER BY ALL
"""
# Messages of amended batches that lie outside of their window, and batches whose count is not that of their messages.
WINDOWS = """
SELECT id FROM (
    SELECT id, message_count, window_start, window_end, unnest(messages) AS m FROM ledger WHERE state = 'amended')
GROUP BY id, message_count, window_start, window_end
HAVING count(*) <> message_count OR min(m.event_time) < window_start OR max(m.event_time) >= window_end ORDER BY id
"""


def check_amendments(ledger: Ledger) -> Iterator[Difference]:
    """Check the amendments of a ledger; what is closed or rejected is checked elsewhere."""
    if not ledger.rows("microbatch", "microbatch", "kind = 'amend'").num_rows:
        return
    messages, ids, windows = (ledger.query(statement, STATES) for statement in (MESSAGES, IDS, WINDOWS))
    expected = "the messages of what an amendment supersedes"
    yield from difference_in_rows("amended messages", expected, messages, "messages too many or too few")
    expected = "a closed or amended batch or a rejection, superseded once, by an amended batch"
    yield from difference_in_rows("superseded", expected, ids, "ids")
    yield from difference_in_rows("amended batches", "messages in their window", windows, "batches")

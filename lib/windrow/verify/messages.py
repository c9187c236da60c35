"""Compare the messages of the depot with those of the ledger, as multisets over all columns; NULL is a value.

Amended batches must have the messages of what they supersede.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.compute as pc
from duckdb import DuckDBPyConnection

from windrow.reading.tables import Ledger
from windrow.reading.values import records
from windrow.verify.columns import MESSAGE, numbers, select_rows
from windrow.verify.depot import DepotMessages
from windrow.verify.report import EXAMPLES, Difference, difference_in_numbers, difference_in_rows
from windrow.verify.snapshot import LedgerContents
from windrow.verify.tables import differing_rows, execute

COLUMNS = ", ".join(MESSAGE)
SAME = " AND ".join(f"u.{name} IS NOT DISTINCT FROM r.{name}" for name in MESSAGE)
# Messages that depot and ledger do not have equally often. Equal messages have equal hashes: hashes are counted first,
# then only messages whose hashes do not balance.
BOTH = """
    SELECT {0}, 1 AS sign, version FROM depot WHERE version <= $last AND {1}
    UNION ALL SELECT {0}, -1, NULL FROM held WHERE {1}
    UNION ALL SELECT {0}, -1, NULL FROM rejected WHERE {1}
"""
HASH = f"hash({COLUMNS})"
UNEVEN = f"""
CREATE OR REPLACE TABLE uneven AS
SELECT content FROM ({BOTH.format(f"{HASH} AS content", "true")}) GROUP BY content HAVING sum(sign) <> 0
"""
# Each distinct message, how much more often the depot has it, and the first depot version that has it.
UNMATCHED = f"""
CREATE OR REPLACE TABLE unmatched AS
SELECT {COLUMNS}, sum(sign)::BIGINT AS more, min(version) AS depot_version
FROM ({BOTH.format(COLUMNS, f"{HASH} IN (FROM uneven)")}) GROUP BY ALL HAVING sum(sign) <> 0
"""
COUNTS = """
SELECT (SELECT count(*) FROM depot WHERE version <= $last),
    coalesce(sum(more) FILTER (WHERE more > 0), 0)::BIGINT,
    coalesce(-sum(more) FILTER (WHERE more < 0 AND depot_version IS NOT NULL), 0)::BIGINT,
    coalesce(-sum(more) FILTER (WHERE more < 0 AND depot_version IS NULL), 0)::BIGINT
FROM unmatched
"""
# Some of these messages, with ids of batches and rejections that contain them.
HOLDERS = f"""
SELECT u.* EXCLUDE (more, depot_version), abs(more) AS times, depot_version, min(r.id) AS first, max(r.id) AS last
FROM (SELECT * FROM unmatched WHERE {{0}} ORDER BY ALL LIMIT {EXAMPLES}) AS u LEFT JOIN (
    SELECT h.*, b.id FROM held AS h JOIN batches AS b ON b.row = h.row UNION ALL BY NAME SELECT * FROM rejected
) AS r ON {SAME} GROUP BY ALL ORDER BY ALL
"""
# Rejections of messages that the depot version in their ids lacks, or has less often.
REJECTED_FROM = f"""
SELECT {COLUMNS}, version FROM (
    SELECT {COLUMNS}, version, 1 AS sign FROM rejected
    WHERE coalesce(version < {{first}} OR version >= {{readable}}, true)
    UNION ALL
    SELECT {COLUMNS}, version, -1 FROM depot
    WHERE version <= {{last}} AND hash(version, event_time) IN (SELECT hash(version, event_time) FROM rejected)
) GROUP BY ALL HAVING sum(sign) > 0 ORDER BY ALL
"""
STATES = ("closed", "amended", "rejected", "superseded")
INSIDE = [name for name in MESSAGE if name not in ("source", "key")]  # a batch
# What each amendment supersedes; `old` and `new` are the messages before and after it.
AMENDED = """
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
""".format(message=", ".join(f"m.{name} AS {name}" for name in INSIDE), names=", ".join(INSIDE))
# Superseded ids that do not exist, are superseded more than once, or by an amended batch that does not exist.
SUPERSEDED = """
SELECT gone.superseded_id AS id, count(*) AS times, bool_and(there.id IS NOT NULL) AS is_there,
    bool_and(heir.id IS NOT NULL) AS by_an_amended_batch
FROM ledger gone
LEFT JOIN ledger there ON there.id = gone.superseded_id AND there.state IN ('closed', 'amended', 'rejected')
LEFT JOIN ledger heir ON heir.id = gone.superseded_by AND heir.state = 'amended'
WHERE gone.state = 'superseded' GROUP BY gone.superseded_id
HAVING times > 1 OR NOT is_there OR NOT by_an_amended_batch ORDER BY ALL
"""
# Amended batches with messages outside their window, or with a count that is not that of their messages.
MISPLACED = """
SELECT id FROM (
    SELECT id, message_count, window_start, window_end, unnest(messages) AS m FROM ledger WHERE state = 'amended')
GROUP BY id, message_count, window_start, window_end
HAVING count(*) <> message_count OR min(m.event_time) < window_start OR max(m.event_time) >= window_end ORDER BY id
"""


@dataclass(frozen=True, slots=True)
class MessageMatch:
    """How many messages the depot has, how many of them the ledger lacks, and how many it has beyond the depot's.

    A message that is in the depot twice and in the ledger three times counts as ok twice, and as duplicated once.
    """

    in_depot: int = 0
    lost: int = 0
    duplicated: int = 0
    unexpected: int = 0

    def __add__(self, other: MessageMatch) -> MessageMatch:
        return MessageMatch(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def ok(self) -> int:
        """Return how many messages depot and ledger have in common."""
        return self.in_depot - self.lost

    @property
    def extra(self) -> int:
        """Return how many messages the ledger has beyond those of the depot."""
        return self.duplicated + self.unexpected


def match(
    connection: DuckDBPyConnection, snapshot: LedgerContents, depot: DepotMessages
) -> tuple[MessageMatch, list[Difference]]:
    """Count each distinct message of the loaded part on both sides; say which are lost, duplicated or unexpected."""
    last = {"last": snapshot.progress.depot_version}
    for statement in (UNEVEN, UNMATCHED):
        connection.execute(statement, last)
    matched = MessageMatch(*connection.execute(COUNTS, last).fetchall()[0])
    findings = [*_locate(connection, "lost", "in a batch or rejected", "more > 0", matched.lost)]
    if depot.readable == depot.first:
        # Otherwise an unexpected message could be from a version that can no longer be read.
        is_known = "more < 0 AND depot_version IS NOT NULL"
        findings += _locate(connection, "duplicated", "as often as in the depot", is_known, matched.duplicated)
        is_unknown = "more < 0 AND depot_version IS NULL"
        findings += _locate(connection, "unexpected", "only messages of the depot", is_unknown, matched.unexpected)
    query = REJECTED_FROM.format(first=depot.first, readable=depot.readable, **last)
    what = "messages of another version"
    findings += differing_rows(connection, "rejected from", "the depot version that the id names", query, what)
    return matched, findings


def check_counts(
    snapshot: LedgerContents, depot: DepotMessages, matched: MessageMatch, rows: int
) -> Iterator[Difference]:
    """Say whether the books balance: `rows` is the number of messages in batches and of all rejections.

    The history lists every depot version with messages, and how many it has; for a raw depot, the versions with chunks,
    where a refused record or chunk counts as a message. If depot versions can no longer be read, the ledger must have
    as many additional messages as the history recorded for those versions.
    """
    listed = snapshot.versions_read
    version = numbers(listed["version"])
    gone = (version >= depot.first) & (version < depot.readable)
    there = depot.counts_by_version(snapshot.progress.depot_version).rename_columns(["version", "there"])
    readable = select_rows(listed, ~gone, ["version", "messages"])
    both = there.join(readable, "version", join_type="full outer").sort_by("version")
    wrong = select_rows(both, numbers(both["there"]) != numbers(both["messages"]))
    wrong = wrong.rename_columns(["version", "in the depot", "in the history"])
    yield from difference_in_rows("depot versions", "each depot version with its messages", wrong, "versions")
    yield from difference_in_numbers("balance", snapshot.messages_read, rows, "messages in batches and rejections")
    beyond = max(snapshot.progress.depot_version - depot.last, 0) if depot.first <= depot.last else 0
    yield from difference_in_numbers("depot", 0, beyond, "versions read beyond the depot's latest")
    if depot.readable > depot.first:
        # A raw depot is read completely or not at all.
        refused = snapshot.raw.rejected.num_rows if snapshot.raw else 0
        recorded = int(pc.sum(select_rows(listed, gone)["messages"]).as_py() or 0) - refused
        what = "messages of depot versions that can no longer be read"
        yield from difference_in_numbers("unreadable versions", recorded, matched.extra, what)


def check_amendments(ledger: Ledger) -> Iterator[Difference]:
    """Check the amendments of a ledger; closed batches and rejections are checked elsewhere."""
    if not ledger.rows("microbatch", "microbatch", "kind = 'amend'").num_rows:
        return
    messages, ids, windows = (ledger.query(statement, STATES) for statement in (AMENDED, SUPERSEDED, MISPLACED))
    expected = "the messages of what an amendment supersedes"
    yield from difference_in_rows("amended messages", expected, messages, "messages too many or too few")
    expected = "a closed or amended batch or a rejection, superseded once, by an amended batch"
    yield from difference_in_rows("superseded", expected, ids, "ids")
    yield from difference_in_rows("amended batches", "messages in their window", windows, "batches")


def _locate(connection: DuckDBPyConnection, check: str, expected: str, where: str, count: int) -> Iterator[Difference]:
    """Yield the difference for some messages, with examples that say where each message is."""
    if not count:
        return
    examples = records(execute(connection, HOLDERS.format(where)))
    for example in examples:
        example["ledger_rows"] = [id_ for id_ in dict.fromkeys((example.pop("first"), example.pop("last"))) if id_]
    yield Difference(check, expected, f"{count} messages", examples=tuple(examples))

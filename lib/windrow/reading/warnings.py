"""Warn of windows that split early, of slivers, of shared and wrong clocks, and of a `max_delay` that is too short.

Of the last `RECENT` microbatches, those since the rules or the depot's mapping last changed count, so that nobody who
acts on a warning gets it again. Of open batches, only the sums beside the clocks are read. The statements are Spark SQL
that DuckDB also understands; `{batch}` is the ledger. Files of other microbatches stay closed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from windrow.delta.query import execute
from windrow.model.durations import SECOND, UNITS, approximate_text
from windrow.model.warn import MAX_TOO_OLD_RATIO, MIN_COUNT, REJECTED_SHARE, SLIVER_SHARE, SPLIT_SHARE
from windrow.reading.tables import Ledger, recorded_rules

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

OLDEST = 30 * UNITS["d"]  # an older message points to a wrong clock rather than to a delay
RECENT = 1_000  # microbatches; a guess: a few hours of a continuous run, a few weeks of a half-hourly job
SHARES = {
    "split_share": SPLIT_SHARE,
    "sliver_share": SLIVER_SHARE,
    "rejected_share": REJECTED_SHARE,
    "max_too_old_ratio": MAX_TOO_OLD_RATIO,
}
SINCE = """(SELECT greatest(max(present.microbatch) - {recent}, coalesce(max(past.microbatch) FILTER (
        WHERE past.rules <> present.rules OR coalesce(past.column_mapping, '')
        <> coalesce(latest.column_mapping, '')), 0))
    FROM {batch} AS past
    CROSS JOIN (SELECT rules, microbatch FROM {batch} WHERE state = 'progress' AND id = 'progress') AS present
    CROSS JOIN (SELECT column_mapping FROM {batch} WHERE state = 'microbatch' AND kind = 'data'
        ORDER BY microbatch DESC LIMIT 1) AS latest
    WHERE past.state = 'microbatch' AND past.kind = 'data')"""
SPLITS = """
SELECT split, batches FROM (
    SELECT count(*) FILTER (WHERE open_reason = 'conflict') AS split, count(*) AS batches
    FROM {batch} WHERE state = 'closed' AND opened_microbatch > {since}
) AS counted CROSS JOIN (SELECT rules FROM {batch} WHERE state = 'progress' AND id = 'progress') AS present
WHERE batches >= {min_count} AND split > {split_share} * batches
    AND rules NOT LIKE '%"keep"%' AND rules NOT LIKE '%"midpoint"%'
"""
# Batches with less than a quarter of the messages usual for their stream.
SLIVERS = """
SELECT slivers, batches FROM (
    SELECT count(*) FILTER (WHERE 4 * own.message_count < usual.count) AS slivers, count(*) AS batches
    FROM {batch} AS own JOIN (
        SELECT coalesce(source, '') AS source, coalesce(key, '') AS key, median(message_count) AS count
        FROM {batch} WHERE state = 'closed' AND opened_microbatch > {since}
        GROUP BY coalesce(source, ''), coalesce(key, '')
    ) AS usual ON coalesce(own.source, '') = usual.source AND coalesce(own.key, '') = usual.key
    WHERE own.state = 'closed' AND own.opened_microbatch > {since}
) AS counted CROSS JOIN (SELECT rules FROM {batch} WHERE state = 'progress' AND id = 'progress') AS present
WHERE batches >= {min_count} AND slivers > {sliver_share} * batches AND rules NOT LIKE '%"aligned"%'
"""
# A source whose messages are too old because those of other keys moved its clock: several devices share it.
SHARED = """
SELECT source, late, raised, read FROM (
    SELECT coalesce(source, '') AS source, min(key) <> max(key) AS several,
        count(*) FILTER (WHERE reason = 'too_old') AS late,
        count(*) FILTER (WHERE reason = 'too_old' AND floor_raise_us > 0) AS raised,
        {messages} AS read
    FROM {batch} WHERE state IN ('closed', 'rejected', 'progress') AND (state = 'progress' OR {read_since})
    GROUP BY coalesce(source, '')
) AS counted WHERE several AND read >= {min_count} AND late > {max_too_old_ratio} * read AND 2 * raised > late
"""
SOURCES = """
SELECT source, rejected, read FROM (
    SELECT source, sum(wrong) AS rejected, sum(every) AS read FROM (
        SELECT coalesce(source, '') AS source, count(*) AS wrong, count(*) AS every FROM {batch}
        WHERE state = 'rejected' AND reason IN ('too_old', 'too_far_ahead') AND microbatch > {since}
        GROUP BY coalesce(source, '')
        UNION ALL
        SELECT coalesce(source, ''), 0, coalesce(sum(message_count), 0) + coalesce(sum(open_messages), 0) FROM {batch}
        WHERE state IN ('closed', 'progress') AND (state = 'progress' OR opened_microbatch > {since})
        GROUP BY coalesce(source, '')
    ) AS counted GROUP BY source
) AS summed WHERE rejected >= {min_count} AND rejected > {rejected_share} * read
    AND source NOT IN (SELECT source FROM ({shared}) AS shared_clocks)
ORDER BY source
"""
# Messages read since the last change, except those of wrong or shared clocks.
COUNTED = """(state = 'progress' OR {read_since})
    AND coalesce(source, '') NOT IN (SELECT source FROM ({sources}) AS wrong_clocks)
    AND coalesce(source, '') NOT IN (SELECT source FROM ({shared}) AS shared_clocks)"""
DELAY = """
SELECT late, read FROM (
    SELECT count(*) FILTER (WHERE reason = 'too_old') AS late,
        {messages} AS read
    FROM {batch}
    WHERE state IN ('closed', 'rejected', 'progress') AND {counted}
) AS counted WHERE read >= {min_count} AND late > {max_too_old_ratio} * read
"""
# The median offset of event time from processing time, in microseconds.
OFFSETS = """
SELECT coalesce(source, '') AS source,
    CAST(median(epoch_us(event_time) - epoch_us(processing_time)) AS BIGINT) AS offset_us
FROM {batch} WHERE state = 'rejected' AND reason IN ('too_old', 'too_far_ahead') AND microbatch > {since}
GROUP BY coalesce(source, '')
"""
# The age of a message when it was processed, which the rules compare with max_delay.
AGE = "epoch_us(processing_time) - epoch_us(event_time)"
# Split by state, because files of one state have no statistics on the columns of another.
READ_SINCE = "(state = 'closed' AND opened_microbatch > {since} OR state = 'rejected' AND microbatch > {since})"
# Those in closed batches, those in open ones (by source, beside its clock), and rejected ones.
MESSAGES = """coalesce(sum(message_count), 0) + coalesce(sum(open_messages), 0)
            + count(*) FILTER (WHERE state = 'rejected')"""
OF_RECENT = (
    "id", "state", "source", "key", "open_reason", "opened_microbatch", "message_count", "reason", "floor_raise_us",
    "event_time", "processing_time", "microbatch", "open_messages", "rules",
)  # fmt: skip
COLUMNS = "ORDER BY microbatch DESC LIMIT 1"
NAMED = 10


@dataclass(frozen=True, slots=True)
class LedgerWarning:
    """What is wrong, under the doctor's code for it, what to do about it, and the sources that it names."""

    code: str
    message: str
    hint: str
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return message and hint as one line."""
        return f"{self.message}. {self.hint}"


def statement(query: str, min_count: int = MIN_COUNT, batch: str = "{batch}", since: int | None = None) -> str:
    """Return one of the queries for a table; it finds what is wrong once there are `min_count` batches or messages.

    It counts what was read after the microbatch `since`; with None it looks `since` up and reads the whole table.
    """
    known = {"batch": batch, "messages": MESSAGES, "age": AGE, "oldest": OLDEST, **SHARES, "min_count": min_count}
    known["since"] = SINCE.format(batch=batch, recent=RECENT) if since is None else str(since)
    known["read_since"] = READ_SINCE.format(**known)
    known["shared"] = SHARED.format(**known)
    known["sources"] = SOURCES.format(**known)
    return query.replace("{counted}", COUNTED).format(**known).strip()


def warnings_of(book: Ledger, min_count: int = MIN_COUNT) -> tuple[LedgerWarning, ...]:
    """Return the warnings; none for a ledger with fewer than `min_count` batches or messages."""
    with recent_rows(book, min_count) as recent:
        return recent.warnings()


def wrong_clocks(nearly_all: Sequence[str], source_count: int) -> Sequence[str]:
    """Return the sources with wrong clocks, given those with nearly all messages too old or too far ahead.

    None, if those are most of the sources: then the rules are to blame.
    """
    return () if 2 * len(nearly_all) > source_count else nearly_all


@dataclass(frozen=True, slots=True)
class RecentRows:
    """The rows of a ledger that were read after the microbatch `since`; fewer than `min_count` trigger no warning."""

    book: Ledger
    min_count: int
    since: int
    connection: DuckDBPyConnection

    def beyond(self, query: str) -> list[dict[str, Any]]:
        """Return the rows that one of the queries finds."""
        sql = statement(query, self.min_count, "recent", self.since)
        return execute(self.connection, sql).read_all().to_pylist()

    def wrong_clocks(self) -> Sequence[str]:
        """Return the sources with wrong clocks."""
        known = self.book.rows("progress", "count(*) AS sources", "source IS NOT NULL")["sources"][0].as_py()
        return wrong_clocks([row["source"] for row in self.beyond(SOURCES)], known)

    def warnings(self) -> tuple[LedgerWarning, ...]:
        """Return all warnings."""
        looks = (_splits, _slivers, _warn_of_shared_sources, _sources, _delay)
        return tuple(chain.from_iterable(look(self) for look in looks))


@contextmanager
def recent_rows(book: Ledger, min_count: int = MIN_COUNT) -> Iterator[RecentRows]:
    """Read the rows of the last `RECENT` microbatches, but none from before rules or mapping last changed."""
    first = max(book.progress().microbatch - RECENT, 0)
    query = f"SELECT {SINCE.format(batch='ledger', recent=RECENT)} AS since"
    [row] = book.query(query, ("microbatch", "progress"), f"microbatch > {first}").to_pylist()
    since = max(first, row["since"] or 0)
    read_since = READ_SINCE.format(since=since)
    with book.connect(("closed", "rejected", "progress"), OF_RECENT, read_since) as connection:
        connection.execute(f"CREATE TEMP TABLE recent AS FROM ledger WHERE state = 'progress' OR {read_since}")
        yield RecentRows(book, min_count, since, connection)


def _splits(recent: RecentRows) -> Iterator[LedgerWarning]:
    """Warn when most windows were split by a repeated type; each split opened another batch."""
    for row in recent.beyond(SPLITS):
        window = approximate_text(recorded_rules(recent.book.progress().rules)["window"])
        yield LedgerWarning(
            "ledger-splits",
            f"{row['split']:,} of {row['batches']:,} closed windows were split before their end ({window}) because "
            "a type came again",
            'Set on_repeat = "keep" to have all measurements of a window in one batch, window_anchor = "aligned" for '
            'windows on the calendar, or split_at = "midpoint" to split between two rounds of measurements; '
            "`windrow tune` shows what share of rounds stays whole.",
        )


def _slivers(recent: RecentRows) -> Iterator[LedgerWarning]:
    """Warn when many closed batches have far fewer messages than is usual for their stream."""
    for row in recent.beyond(SLIVERS):
        share = 100 * row["slivers"] / row["batches"]
        yield LedgerWarning(
            "ledger-slivers",
            f"{row['slivers']:,} of {row['batches']:,} closed batches ({share:.0f} %) have less than a quarter of "
            "the usual number of messages for their source and key",
            'For measurements at regular times, set window_anchor = "aligned" and on_repeat = "keep"; `windrow tune` '
            "counts such batches for each window.",
        )


def _warn_of_shared_sources(recent: RecentRows) -> Iterator[LedgerWarning]:
    """Warn of sources with several keys whose clocks differ, so that the fastest makes the others too old."""
    if rows := recent.beyond(SHARED + "ORDER BY source"):
        named = [
            f"{row['source']!r} ({row['late']:,} of {row['read']:,} messages, {row['raised']:,} of them only "
            "because others moved its clock)"
            for row in rows
        ]
        yield LedgerWarning(
            "clock-shared",
            f"keys with different clocks share a source, and messages were too old: {first_names(named)}",
            "Map source under [ingest.columns] or [depot.columns], so that each device or file has its own clock.",
            tuple(row["source"] for row in rows[:NAMED]),
        )


def _sources(recent: RecentRows) -> Iterator[LedgerWarning]:
    """Warn of sources whose messages are nearly all too old or too far ahead: their clocks are wrong."""
    rows = recent.beyond(SOURCES)
    if not rows:
        return
    medians = {row["source"]: row["offset_us"] for row in recent.beyond(OFFSETS)}
    offsets = {row["source"]: plain_offset(medians[row["source"]]) for row in rows}
    named = [
        f"{row['source']!r} ({row['rejected']:,} of {row['read']:,}, {apart_text(offsets[row['source']])})"
        for row in rows
    ]
    condition = f"kind = 'data' AND microbatch > {recent.since}"
    [[recorded]] = recent.book.rows("microbatch", "column_mapping", condition, COLUMNS).to_pydict().values()
    mapping = json.loads(recorded or "{}")
    correction = json.dumps(correct_clocks(mapping, offsets), ensure_ascii=False)
    yield LedgerWarning(
        "ledger-sources",
        f"nearly all messages of {first_names(named)} were rejected; behind and ahead are the median of "
        "event time minus processing time",
        "If their clocks are wrong, begin a new ledger, because this one keeps what it rejected, and write under "
        f"[depot.columns]{'' if mapping else TABLE}: event_time = {correction}",
        tuple(row["source"] for row in rows[:NAMED]),
    )


TABLE = ' (depot = "..." becomes table = "..." under [depot])'


def first_names(names: Sequence[str], most: int = NAMED, joint: str = ", and ") -> str:
    """Return the first names as a list in words, with how many more there are."""
    more = f"{joint}{len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def plain_offset(offset: int) -> int:
    """Return how far a clock is off (us), given the median of event time minus processing time.

    From a minute on, it is rounded up to the next second: the difference is how long messages take.
    """
    return -(-offset // SECOND) * SECOND if abs(offset) >= UNITS["m"] else offset


def correct_clocks(mapping: Mapping[str, str], offsets: Mapping[str, int]) -> str:
    """Return the `event_time` expression for a mapping that corrects the clocks of sources by their offsets (us)."""
    source, event_time = (" ".join(mapping.get(name, name).split()) for name in ("source", "event_time"))
    whens = [f"WHEN {source} = {_text(name)} THEN {-offset}" for name, offset in offsets.items()]
    shift = f"CASE {' '.join(whens)} ELSE 0 END"
    if "source" not in mapping and offsets.keys() == {""}:  # the depot may have no such column
        shift = str(-offsets[""])
    return f"timestamp_micros(unix_micros({event_time}) + {shift})"


def apart_text(offset: int) -> str:
    """Say how far a clock is off: to the second, or to the minute from an hour on."""
    unit = UNITS["m"] if abs(offset) >= UNITS["h"] else SECOND
    return f"{approximate_text(max(round(abs(offset) / unit), 1) * unit)} {'behind' if offset < 0 else 'ahead'}"


def _text(source: str) -> str:
    return "'" + source.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _delay(recent: RecentRows) -> Iterator[LedgerWarning]:
    """Warn when too many messages are too old, not counting those of wrong clocks."""
    for row in recent.beyond(DELAY):
        late, read = row["late"], row["read"]
        yield LedgerWarning(
            "ledger-delay",
            f"{late:,} of {read:,} messages ({100 * late / read:.1f} %) were too old for max_delay "
            f"({approximate_text(recent.book.progress().max_delay_us)})",
            "Set a longer max_delay; `windrow tune` shows what other values would keep.",
        )

"""Warn of windows that split early, of shared and wrong clocks, and of a `max_delay` that is too short.

Only what was read since the rules or the mapping of the depot last changed counts: whoever acts on a warning is not
told again. The statements are Spark SQL that DataFusion and DuckDB know too; `{batch}` is the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from windrow.model.durations import SECOND, UNITS, span
from windrow.model.warn import WarnPart
from windrow.reading.tables import Ledger, recorded_rules

SINCE = """(SELECT coalesce(max(past.microbatch), 0) FROM {batch} AS past
    CROSS JOIN (SELECT rules FROM {batch} WHERE state = 'progress' AND id = 'progress') AS present
    CROSS JOIN (SELECT columns FROM {batch} WHERE state = 'microbatch' AND kind = 'data'
        ORDER BY microbatch DESC LIMIT 1) AS latest
    WHERE past.state = 'microbatch' AND past.kind = 'data'
        AND (past.rules <> present.rules OR coalesce(past.columns, '') <> coalesce(latest.columns, '')))"""
SPLITS = """
SELECT split, batches FROM (
    SELECT count(*) FILTER (WHERE opened_by = 'conflict') AS split, count(*) AS batches
    FROM {batch} WHERE state IN ('open', 'closed') AND opened_in > {since}
) AS counted CROSS JOIN (SELECT rules FROM {batch} WHERE state = 'progress' AND id = 'progress') AS present
WHERE batches >= {least} AND split > {split_share} * batches
    AND rules NOT LIKE '%"keep"%' AND rules NOT LIKE '%"midpoint"%'
"""
# Batches with less than a quarter of the messages that are usual for their stream.
SLIVERS = """
SELECT slivers, batches FROM (
    SELECT count(*) FILTER (WHERE 4 * own.message_count < usual.messages) AS slivers, count(*) AS batches
    FROM {batch} AS own JOIN (
        SELECT coalesce(source, '') AS source, coalesce(key, '') AS key, median(message_count) AS messages
        FROM {batch} WHERE state = 'closed' AND opened_in > {since} GROUP BY coalesce(source, ''), coalesce(key, '')
    ) AS usual ON coalesce(own.source, '') = usual.source AND coalesce(own.key, '') = usual.key
    WHERE own.state = 'closed' AND own.opened_in > {since}
) AS counted CROSS JOIN (SELECT rules FROM {batch} WHERE state = 'progress' AND id = 'progress') AS present
WHERE batches >= {least} AND slivers > {sliver_share} * batches AND rules NOT LIKE '%"aligned"%'
"""
# A source whose messages are too old because others of other keys moved its clock: it is not the clock of one device.
SHARED = """
SELECT source, late, raised, messages FROM (
    SELECT coalesce(source, '') AS source, min(key) <> max(key) AS several,
        count(*) FILTER (WHERE reason = 'too_old') AS late,
        count(*) FILTER (WHERE reason = 'too_old' AND clock_lead_us > 0) AS raised,
        coalesce(sum(message_count), 0) + count(*) FILTER (WHERE state = 'rejected') AS messages
    FROM {batch} WHERE state IN ('open', 'closed', 'rejected') AND coalesce(opened_in, microbatch) > {since}
    GROUP BY coalesce(source, '')
) AS counted WHERE several AND messages >= {least} AND late > {late_share} * messages AND 2 * raised > late
"""
SOURCES = """
SELECT source, rejected, messages FROM (
    SELECT source, sum(wrong) AS rejected, sum(every) AS messages FROM (
        SELECT coalesce(source, '') AS source, count(*) AS wrong, count(*) AS every FROM {batch}
        WHERE state = 'rejected' AND reason IN ('too_old', 'too_futuristic') AND microbatch > {since}
        GROUP BY coalesce(source, '')
        UNION ALL
        SELECT coalesce(source, ''), 0, sum(message_count) FROM {batch}
        WHERE state IN ('open', 'closed') AND opened_in > {since}
        GROUP BY coalesce(source, '')
    ) AS counted GROUP BY source
) AS summed WHERE rejected >= {least} AND rejected > {rejected_share} * messages
    AND source NOT IN (SELECT source FROM ({shared}) AS shared_clocks)
ORDER BY source
"""
# Read since the last change, and not of a wrong or shared clock.
COUNTED = """coalesce(opened_in, microbatch) > {since}
    AND coalesce(source, '') NOT IN (SELECT source FROM ({sources}) AS wrong_clocks)
    AND coalesce(source, '') NOT IN (SELECT source FROM ({shared}) AS shared_clocks)"""
DELAY = """
SELECT late, messages FROM (
    SELECT count(*) FILTER (WHERE reason = 'too_old') AS late,
        coalesce(sum(message_count), 0) + count(*) FILTER (WHERE state = 'rejected') AS messages
    FROM {batch}
    WHERE state IN ('open', 'closed', 'rejected') AND {counted}
) AS counted WHERE messages >= {least} AND late > {late_share} * messages
"""
# How far the event time of a message is from the time of its processing, in microseconds.
OFFSETS = """
SELECT coalesce(source, '') AS source,
    CAST(median(CAST(event_time AS BIGINT) - CAST(processing_time AS BIGINT)) AS BIGINT) AS offset_us
FROM {batch} WHERE state = 'rejected' AND reason IN ('too_old', 'too_futuristic') AND microbatch > {since}
GROUP BY coalesce(source, '')
"""
COLUMNS = "ORDER BY microbatch DESC LIMIT 1"
NAMED = 10


@dataclass(frozen=True, slots=True)
class LedgerWarning:
    """What is off, under the code that the doctor gives it, and what to do about it."""

    code: str
    what: str
    todo: str

    def __str__(self) -> str:
        """Return both as one line."""
        return f"{self.what}. {self.todo}"


def statement(query: str, limits: WarnPart, batch: str = "{batch}") -> str:
    """Return one of the queries for a table: its rows are what these limits say is off."""
    known = {"batch": batch, "since": SINCE.format(batch=batch), **limits.model_dump()}
    known["shared"] = SHARED.format(**known)
    known["sources"] = SOURCES.format(**known)
    return query.replace("{counted}", COUNTED).format(**known).strip()


def warnings_of(book: Ledger, limits: WarnPart) -> tuple[LedgerWarning, ...]:
    """Return what is off by these limits, nothing for a ledger with less than `limits.least` batches or messages."""
    looks = (_splits, _slivers, _shared, _sources, _delay)
    return tuple(chain.from_iterable(look(book, limits) for look in looks))


def _found(book: Ledger, query: str, limits: WarnPart) -> list[dict[str, Any]]:
    return book.ask(statement(query, limits, "ledger")).to_pylist()


def _splits(book: Ledger, limits: WarnPart) -> Iterator[LedgerWarning]:
    """Tell when most windows end where a repeated type split them; each of these splits opened another batch."""
    for found in _found(book, SPLITS, limits):
        window = span(recorded_rules(book.progress().rules)["window"])
        yield LedgerWarning(
            "ledger-splits",
            f"{found['split']:,} of {found['batches']:,} windows were split before their end ({window}) because a type "
            "came again",
            'Set repeats = "keep" to have all measurements of a window in one batch, and window_start = "aligned" for '
            'windows on the calendar, or split_at = "midpoint" to split between two rounds of measurements; '
            "`windrow tune` says which share of rounds stays whole.",
        )


def _slivers(book: Ledger, limits: WarnPart) -> Iterator[LedgerWarning]:
    """Tell when many closed batches hold far fewer messages than is usual for their stream."""
    for found in _found(book, SLIVERS, limits):
        share = 100 * found["slivers"] / found["batches"]
        yield LedgerWarning(
            "ledger-slivers",
            f"{found['slivers']:,} of {found['batches']:,} closed batches ({share:.0f} %) have less than a quarter of "
            "the messages that are usual for their source and key",
            'If measurements come at regular times, set window_start = "aligned" and repeats = "keep"; `windrow tune` '
            "counts such batches for each window.",
        )


def _shared(book: Ledger, limits: WarnPart) -> Iterator[LedgerWarning]:
    """Tell of sources with several keys whose clocks differ, so that the fastest makes the others too old."""
    if found := _found(book, SHARED + "ORDER BY source", limits):
        named = [
            f"{row['source']!r} ({row['late']:,} of {row['messages']:,} messages, {row['raised']:,} of them only "
            "because others moved its clock)"
            for row in found[:NAMED]
        ]
        more = [f"and {len(found) - NAMED:,} more"] if len(found) > NAMED else []
        yield LedgerWarning(
            "clock-shared",
            f"keys with different clocks share a source, and messages were too old: {', '.join(named + more)}",
            "Map source under [ingest.columns] or [depot.columns], so that each device or file has its own clock.",
        )


def _sources(book: Ledger, limits: WarnPart) -> Iterator[LedgerWarning]:
    """Tell of sources of which nearly all messages are too old or too futuristic: their clocks are off."""
    found = _found(book, SOURCES, limits)
    if not found:
        return
    offsets = {row["source"]: row["offset_us"] for row in _found(book, OFFSETS, limits)}
    named = [
        f"{row['source']!r} ({row['rejected']:,} of {row['messages']:,}, {_apart(offsets[row['source']])})"
        for row in found[:NAMED]
    ]
    more = [f"and {len(found) - NAMED:,} more"] if len(found) > NAMED else []
    mapping = json.loads(book.rows("microbatch", "columns", "kind = 'data'", COLUMNS)["columns"][0].as_py() or "{}")
    yield LedgerWarning(
        "ledger-sources",
        f"nearly all messages of {', '.join(named + more)} were rejected; behind and ahead are the median of "
        "event time minus processing time",
        f"If their clocks are wrong, write under [depot.columns]{'' if mapping else TABLE}: event_time = "
        + json.dumps(corrected(mapping, {row["source"]: offsets[row["source"]] for row in found}), ensure_ascii=False),
    )


TABLE = ' (depot = "..." becomes table = "..." under [depot])'


def corrected(mapping: Mapping[str, str], offsets: Mapping[str, int]) -> str:
    """Return the expression of `event_time` in a mapping that corrects the clocks of sources by their offsets (us)."""
    source, event_time = (" ".join(mapping.get(name, name).split()) for name in ("source", "event_time"))
    whens = [f"WHEN {source} = {_text(name)} THEN {-offset}" for name, offset in offsets.items()]
    shift = f"CASE {' '.join(whens)} ELSE 0 END"
    if "source" not in mapping and offsets.keys() == {""}:  # the depot may have no such column
        shift = str(-offsets[""])
    return f"timestamp_micros(unix_micros({event_time}) + {shift})"


def _apart(offset: int) -> str:
    """Say how far a clock is off: to the second, from an hour on to the minute."""
    unit = UNITS["m"] if abs(offset) >= UNITS["h"] else SECOND
    return f"{span(max(round(abs(offset) / unit), 1) * unit)} {'behind' if offset < 0 else 'ahead'}"


def _text(source: str) -> str:
    """Return a source as a text of Spark SQL."""
    return "'" + source.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _delay(book: Ledger, limits: WarnPart) -> Iterator[LedgerWarning]:
    """Tell when too many messages are too old, not counting those of wrong clocks."""
    for found in _found(book, DELAY, limits):
        late, read = found["late"], found["messages"]
        yield LedgerWarning(
            "ledger-delay",
            f"{late:,} of {read:,} messages ({100 * late / read:.1f} %) were too old for max_delay "
            f"({span(book.progress().max_delay_us)})",
            "Set a longer max_delay; `windrow tune` shows what each would keep.",
        )

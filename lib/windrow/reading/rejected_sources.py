"""Read which sources have rejected messages: how many, since when, how far off they are, why, and what to do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from windrow.model.chunks import REFUSED
from windrow.reading.reasons import TIMES, Explanation, explain, reason_hint
from windrow.reading.tables import Ledger, quote_text, recorded_rules
from windrow.reading.values import records

STRAYS = 0.05  # the share of rejections that may come before `since`
COUNTS = """
SELECT {source} AS source, coalesce(sum(message_count), 0) + coalesce(sum(open_messages), 0) AS accepted,
    count(*) FILTER (state = 'rejected') AS rejected
FROM ledger WHERE state IN ('closed', 'progress', 'rejected') GROUP BY 1
"""
SAMPLE = ", ".join(["id := id", "detail := detail", *(f"{name}_us := epoch_us({name})" for name in TIMES)])
REJECTED = """
SELECT own.* EXCLUDE (since, until), least(own.since, beginning.started_at) AS since,
    least(own.until, ending.started_at) AS until, sampled.rules AS rules
FROM (
    SELECT {source} AS source, reason, count(*) AS message_count, max(missed_by_us) AS missed_by_us,
        count(DISTINCT key) AS key_count, quantile_disc(microbatch, {strays}) AS first, max(microbatch) AS last,
        quantile_disc(received_at, {strays}) AS since, max(received_at) AS until,
        CAST(median(epoch_us(event_time) - epoch_us(processing_time)) AS BIGINT) AS offset_us,
        arg_max(struct_pack({sample}, missed_by_us := missed_by_us, microbatch := microbatch),
            coalesce(missed_by_us, 0)) AS sample,
        count(*) OVER () AS pairs
    FROM ledger WHERE state = 'rejected' GROUP BY 1, 2 ORDER BY message_count DESC, 1, 2 LIMIT {limit}
) AS own
LEFT JOIN ({history}) AS beginning ON beginning.microbatch = own.first
LEFT JOIN ({history}) AS ending ON ending.microbatch = own.last
LEFT JOIN ({history}) AS sampled ON sampled.microbatch = own.sample['microbatch']
ORDER BY message_count DESC, source, reason
"""
HISTORY = """SELECT microbatch, min(started_at) AS started_at, any_value(rules) AS rules
    FROM ledger WHERE state = 'microbatch' GROUP BY microbatch"""
BINS = """
SELECT {source} AS source, reason, CAST((microbatch - 1) * {bins} // {last} AS INTEGER) AS bin, count(*) AS messages
FROM ledger WHERE state = 'rejected' AND {source} IN ({among}) GROUP BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class RejectedSource:
    """The messages of a source that were rejected for one reason; `read` is how many messages of the source were read.

    `offset_us` is the median of event time minus processing time, None where a time is missing. The messages arrived
    or were read, whichever was earlier, from `since` to `until`; 5 % may precede `since`. `sample` is the id of the
    message that missed by most, which `explanation` is about. `bins` counts the messages in equal parts of the history,
    and is empty for a short one.
    """

    source: str
    reason: str
    message_count: int
    read: int
    key_count: int
    missed_by_us: int
    offset_us: int | None
    since: str | None
    until: str | None
    sample: str
    explanation: Explanation
    bins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RejectedSources:
    """The sources and reasons with the most rejections, out of `pairs` such pairs, and the counts of every source."""

    worst: tuple[RejectedSource, ...]
    pairs: int
    accepted: Mapping[str, int]
    rejected: Mapping[str, int]


def rejected_sources(book: Ledger, limit: int = 100, bins: int = 24) -> RejectedSources:
    """Read the sources with the most rejections for one reason, at most `limit`; a raw record has its raw source.

    `bins` is the number of parts into which the history is divided. Raises IncompatibleTableError for invalid rules.
    """
    source = "coalesce(source, raw_source, '')" if book.raw else "coalesce(source, '')"
    counts = book.query(COUNTS.format(source=source), ("closed", "progress", "rejected")).to_pylist()
    accepted, rejected = ({row["source"]: row[name] for row in counts} for name in ("accepted", "rejected"))
    query = REJECTED.format(source=source, strays=STRAYS, sample=SAMPLE, limit=int(limit), history=HISTORY)
    rows = records(book.query(query, ("rejected", "microbatch")))
    counted = _bins(book, source, {row["source"] for row in rows}, bins)
    worst = tuple(
        RejectedSource(
            **{
                name: row[name]
                for name in ("source", "reason", "message_count", "key_count", "offset_us", "since", "until")
            },
            read=int(accepted[row["source"]] + rejected[row["source"]]),
            missed_by_us=row["missed_by_us"] or 0,
            sample=row["sample"]["id"],
            explanation=_explain_worst(row),
            bins=counted.get((row["source"], row["reason"]), ()),
        )
        for row in rows
    )
    return RejectedSources(worst, rows[0]["pairs"] if rows else 0, accepted, rejected)


def _bins(book: Ledger, source: str, among: Collection[str], bins: int) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return how many messages of each source and reason were rejected in equal parts of the history."""
    last = book.progress().microbatch
    if not among or last < bins:
        return {}
    names = ", ".join(map(quote_text, among))
    counts: dict[tuple[str, str], list[int]] = {}
    query = BINS.format(source=source, bins=int(bins), last=int(last), among=names)
    for row in book.query(query, "rejected").to_pylist():
        counts.setdefault((row["source"], row["reason"]), [0] * bins)[row["bin"]] = row["messages"]
    return {pair: tuple(each) for pair, each in counts.items()}


def _explain_worst(row: dict[str, Any]) -> Explanation:
    """Explain why the message that missed by most was rejected, under the rules of its microbatch."""
    if row["reason"].startswith(REFUSED):
        return Explanation(row["sample"]["detail"] or row["reason"], reason_hint(row["reason"]))
    rules = recorded_rules(row["rules"])
    refused = row["sample"] | {"source": row["source"], "reason": row["reason"]}
    return explain(refused, rules["max_delay"], rules["max_lead"])

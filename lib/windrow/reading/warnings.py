"""Say what is off: windows that split early, sources that are rejected, and a `max_delay` that is too short."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from windrow.model import durations
from windrow.model.warn import WarnPart
from windrow.reading.delta import Ledger, recorded_rules

SECOND = 1_000_000
# How far the event time of a message is from the time of its processing, in microseconds.
OFFSET = "CAST(event_time AS BIGINT) - CAST(processing_time AS BIGINT)"


@dataclass(frozen=True, slots=True)
class LedgerWarning:
    """What is off, under the code that the doctor gives it, and what to do about it."""

    code: str
    what: str
    todo: str

    def __str__(self) -> str:
        """Return both as one line."""
        return f"{self.what}. {self.todo}"


def warnings_of(book: Ledger, limits: WarnPart) -> tuple[LedgerWarning, ...]:
    """Return what is off by these limits, nothing for a ledger with less than `limits.least` batches or messages."""
    return tuple(chain(_splits(book, limits), _sources(book, limits), _delay(book, limits)))


def _splits(book: Ledger, limits: WarnPart) -> Iterator[LedgerWarning]:
    """Tell when most windows end where a repeated type split them; each of these splits opened another batch."""
    rules = recorded_rules(book.progress().rules)
    if (rules.get("repeats", "split"), rules.get("split_at", "message")) != ("split", "message"):
        return
    counted = "count(*) AS batches, count(*) FILTER (WHERE opened_by = 'conflict') AS split"
    found = book.rows(("open", "closed"), counted).to_pylist()[0]
    if found["batches"] >= limits.least and found["split"] > limits.split_share * found["batches"]:
        window = durations.text(rules["window"])
        yield LedgerWarning(
            "ledger-splits",
            f"{found['split']:,} of {found['batches']:,} windows were split before their end ({window}) because a type "
            "came again",
            'Set repeats = "keep" to have all measurements of a window in one batch, or split_at = "midpoint" to split '
            "between two rounds of measurements.",
        )


def _sources(book: Ledger, limits: WarnPart) -> Iterator[LedgerWarning]:
    """Tell of sources of which nearly all messages are too old or too futuristic: their clocks are off."""
    refused = f"source, count(*) AS rejected, CAST(median({OFFSET}) AS BIGINT) AS offset_us"
    wrong = "reason IN ('too_old', 'too_futuristic')"
    of_source = book.rows("rejected", refused, wrong, f"GROUP BY source HAVING count(*) >= {limits.least} ORDER BY 1")
    if not of_source.num_rows:
        return
    held = book.rows(("open", "closed"), "source, sum(message_count) AS messages", rest="GROUP BY source")
    accepted = dict(zip(held["source"].to_pylist(), held["messages"].to_pylist(), strict=True))
    for row in of_source.to_pylist():
        messages = row["rejected"] + accepted.get(row["source"], 0)
        if row["rejected"] <= limits.rejected_share * messages:
            continue
        offset = abs(row["offset_us"])
        apart = f"{durations.text(max(offset // SECOND, 1) * SECOND)} {'behind' if row['offset_us'] < 0 else 'ahead'}"
        moved = f"timestamp_micros(unix_micros(event_time) {'+' if row['offset_us'] < 0 else '-'} {offset})"
        yield LedgerWarning(
            "ledger-sources",
            f"{row['rejected']:,} of {messages:,} messages of source {row['source']!r} were rejected; their event time "
            f"is {apart} of their processing (median)",
            "If its clock is wrong, map it under [depot.columns]: event_time = "
            + json.dumps(f"CASE WHEN source = {_text(row['source'])} THEN {moved} ELSE event_time END"),
        )


def _text(source: str) -> str:
    """Return a source as a text of Spark SQL."""
    return "'" + source.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _delay(book: Ledger, limits: WarnPart) -> Iterator[LedgerWarning]:
    """Tell when too many messages are too old."""
    counted = (
        "count(*) FILTER (WHERE reason = 'too_old') AS late, "
        "coalesce(sum(message_count), 0) + count(*) FILTER (WHERE state = 'rejected') AS read"
    )
    late, read = book.rows(("open", "closed", "rejected"), counted).to_pylist()[0].values()
    if read >= limits.least and late > limits.late_share * read:
        allowed = durations.text(book.progress().max_delay_us)
        yield LedgerWarning(
            "ledger-delay",
            f"{late:,} of {read:,} messages ({100 * late / read:.1f} %) were too old for max_delay ({allowed})",
            "Set a longer max_delay; `windrow tune` shows what each would keep.",
        )

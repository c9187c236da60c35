"""Explain, to somebody who does not know the rules, why a message was rejected and what would have kept it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windrow.model.durations import approximate_text, ceil_text
from windrow.model.timestamps import time_text


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happened, and what would have kept the message."""

    reason: str
    hint: str


TIMES = ("event_time", "received_at", "processing_time")
HINTS = {
    "format_cast": "correct the type of the field under [format] fields, or the program that writes the source",
    "format_codec": "chunks must be a stream of whole frames of [format] compression, of at most max_decoded_bytes",
    "format_columns": "each record must have as many columns as [format] fields or the header names",
    "format_conflict": "each chunk needs its own number; a source that starts over needs another name",
    "format_encoding": "text must be UTF-8; a field of type binary takes any bytes",
    "format_gap": "chunks that come late need a larger [format] max_pending_bytes",
    "format_invalid": "every chunk needs raw_source, sequence from 1 on, bytes and received_at",
    "format_oversize": "a larger [format] max_record_bytes accepts it, unless a quote or delimiter is missing",
    "format_repeated": "nothing is lost: the first one was read",
    "format_syntax": "it does not have the syntax of [format]; correct it and ingest it again under another name",
}


def reason_hint(reason: str) -> str:
    """Return what to do about a record or chunk that the format refused for this reason."""
    return HINTS.get(reason, "correct the format, or the program that writes the source")


def explain(refused: Mapping[str, Any], max_delay: int, max_lead: int, first: str | None = None) -> Explanation:
    """Return why a message was rejected under the rules of its microbatch (microseconds).

    `refused` is its row in the ledger, with `event_time_us`, `received_at_us` and `processing_time_us`. `first` is the
    id of the batch with the original of a duplicate, if known.
    """
    reason, off_by = refused["reason"], refused["missed_by_us"] or 0
    if reason == "too_old":
        return _too_old(refused, max_delay, max_delay + off_by)
    if reason == "too_far_ahead":
        ahead = max_lead + off_by
        return Explanation(
            f"max_lead was {approximate_text(max_lead)}; its time was {approximate_text(ahead)} after its arrival",
            f'max_lead = "{ceil_text(ahead)}" would have kept it, if the clock of its device is right',
        )
    if reason == "duplicate":
        where = f" and is in {first}" if first else ""
        return Explanation(
            f"a message of the same source, key, type and time came before it{where}; "
            "the first one wins, payloads are not compared",
            "if both are intended, give them different types or times",
        )
    if reason == "clock_ahead":
        return Explanation(
            f"when it was read, its received_at was {approximate_text(off_by)} beyond the wall clock + max_clock_skew",
            "correct the clock of the machine that sets received_at; this message moved no clock and harmed no other",
        )
    return Explanation(
        f"it is not a message that can be batched: {refused['detail'] or reason}",
        "the writer of the depot, or the mapping of its columns, must give every message source, key, type, event_time "
        "and received_at, and values of their types; try_cast in [depot.columns] turns other values into NULL",
    )


def _too_old(refused: Mapping[str, Any], max_delay: int, age: int) -> Explanation:
    """Distinguish a message that came late from one whose source's clock other messages, or a tick, had advanced."""
    kept = f'max_delay = "{ceil_text(age)}" would have kept it'
    event_time, received_at, processed = (refused[f"{name}_us"] for name in TIMES)
    own = None if event_time is None or received_at is None else received_at - event_time
    rule = f"max_delay was {approximate_text(max_delay)}"
    if own is None or own >= age:
        return Explanation(f"{rule}; it came {approximate_text(age)} after its time", kept)
    clock = "" if processed is None else f" at {time_text(processed)}"
    moved = f"the clock of source {refused['source']!r} was{clock} already, {approximate_text(age)} after its time"
    if own > max_delay:
        return Explanation(f"{rule}; it came {approximate_text(own)} after its time, when {moved}", kept)
    came = f"it came {approximate_text(abs(own))} {'after' if own >= 0 else 'before'} its time"
    return Explanation(
        f"{rule}; {came}, but {moved}: other messages of the source, or a tick, had moved it",
        f"a separate source for each device or file gives each its own clock; or {kept}",
    )

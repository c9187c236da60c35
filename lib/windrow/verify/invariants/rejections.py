"""The invariants of rejections: those of messages, by the times and rules recorded with them, and the format's."""

from __future__ import annotations

from windrow.model.chunks import REASONS
from windrow.model.messages import EARLIEST, LATEST
from windrow.verify.invariants.relations import FORMAT_REJECTION, REJECTION, TOTAL, encode_component

MESSAGE = "id, reason, source, key, type, event_time, received_at"
TIMES = f"{MESSAGE}, processing_time, missed_by_us, floor_raise_us, microbatch"
FORMAT = "id, reason, detail, received_at, microbatch"
IN_RANGE = f"unix_micros({{0}}) >= {EARLIEST} AND unix_micros({{0}}) < {LATEST}"

REJECTIONS = (
    TOTAL.invariant(
        "rejected_messages_there",
        "There are as many rejections as the history says there were.",
        "rejected, rejected_rows",
        "rejected = rejected_rows",
    ),
    REJECTION.invariant(
        "id",
        "The id of a rejection has a depot version, the stream and a number.",
        "id, source, key",
        f"id = concat_ws('/', 'rejected', named_version, {encode_component('source')}, {encode_component('key')}, "
        "named_number) "
        "AND named_version <> '' AND named_number <> ''",
    ),
    REJECTION.invariant(
        "reason",
        "The reason is one of the five.",
        MESSAGE,
        "reason IN ('too_old', 'too_far_ahead', 'duplicate', 'clock_ahead', 'invalid')",
    ),
    REJECTION.invariant(
        "microbatch",
        "A message was rejected in a microbatch of the history.",
        f"{MESSAGE}, microbatch",
        "rejecting_microbatch IS NOT NULL",
    ),
    REJECTION.invariant(
        "detail",
        "An invalid message says which column makes it invalid; detail is empty for any other.",
        f"{MESSAGE}, detail",
        "(reason = 'invalid') = (detail IS NOT NULL)",
    ),
    REJECTION.invariant(
        "invalid",
        "An invalid message lacks a column, or has a time out of range or a value that cannot be cast; no other does.",
        f"{MESSAGE}, detail",
        "(reason = 'invalid') = (coalesce(detail LIKE '%: %', false) OR source IS NULL OR key IS NULL OR type IS NULL "
        f"OR ({IN_RANGE.format('event_time')} AND {IN_RANGE.format('received_at')}) IS NOT TRUE)",
    ),
    REJECTION.invariant(
        "processing_time",
        "A message refused by a rule has a processing time, not before received_at; no other rejection has one.",
        TIMES,
        "CASE WHEN reason IN ('too_old', 'too_far_ahead', 'duplicate') "
        "THEN floor_raise_us = raised_us AND raised_us >= 0 "
        "ELSE processing_time IS NULL AND floor_raise_us IS NULL END",
    ),
    REJECTION.invariant(
        "too_old",
        "A too_old message missed processing time - max_delay by missed_by_us.",
        f"{TIMES}, delay",
        "reason IS DISTINCT FROM 'too_old' OR (missed_by_us = -ahead_us - delay AND missed_by_us > 0)",
    ),
    REJECTION.invariant(
        "too_far_ahead",
        "A too_far_ahead message exceeded processing time + max_lead by missed_by_us.",
        f"{TIMES}, lead",
        "reason IS DISTINCT FROM 'too_far_ahead' OR (missed_by_us = ahead_us - lead AND missed_by_us > 0)",
    ),
    REJECTION.invariant(
        "off_by",
        "missed_by_us is above 0 for a stamp ahead of the clock, and 0 for duplicates and invalid messages.",
        TIMES,
        "CASE WHEN reason = 'clock_ahead' THEN missed_by_us > 0 "
        "WHEN reason IN ('duplicate', 'invalid') THEN missed_by_us = 0 ELSE true END",
    ),
    REJECTION.invariant(
        "duplicate",
        "A duplicate has a message of the same stream, type and event time in a batch.",
        MESSAGE,
        "reason IS DISTINCT FROM 'duplicate' OR first_in IS NOT NULL",
    ),
    REJECTION.invariant(
        "clock_ahead",
        "No message is stamped ahead of the wall clock.",
        TIMES,
        "reason IS DISTINCT FROM 'clock_ahead'",
        "warning",
    ),
    REJECTION.invariant(
        "not_invalid",
        "No message is invalid.",
        f"{MESSAGE}, detail",
        "reason IS DISTINCT FROM 'invalid'",
        "info",
    ),
    FORMAT_REJECTION.invariant(
        "id",
        "The id of a format rejection names a record by its place, or a chunk by its depot version.",
        FORMAT,
        "id LIKE 'record/%' OR id LIKE 'chunk/%'",
    ),
    FORMAT_REJECTION.invariant(
        "reason",
        "A format rejection has one of the known reasons.",
        FORMAT,
        f"reason IN {REASONS}",
    ),
    FORMAT_REJECTION.invariant("detail", "A format rejection says why in detail.", FORMAT, "detail IS NOT NULL"),
    FORMAT_REJECTION.invariant(
        "microbatch",
        "A format rejection belongs to a microbatch of the history.",
        FORMAT,
        "rejecting_microbatch IS NOT NULL",
    ),
    FORMAT_REJECTION.invariant(
        "no_message",
        "A format rejection has no column of a message except received_at, and missed_by_us is 0.",
        f"{FORMAT}, source, key, type, event_time, sequence, processing_time, missed_by_us, floor_raise_us",
        "source IS NULL AND key IS NULL AND type IS NULL AND event_time IS NULL AND sequence IS NULL AND "
        "processing_time IS NULL AND floor_raise_us IS NULL AND missed_by_us = 0",
    ),
    FORMAT_REJECTION.invariant("nothing", "The format refuses nothing.", FORMAT, "id IS NULL", "info"),
)

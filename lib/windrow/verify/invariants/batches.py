"""The invariants of batches, open and closed."""

from __future__ import annotations

from windrow.verify.invariants.relations import BATCH, MESSAGE, TOTAL, WINDOW_TYPE, identity

STREAM = "id, state, source, key, part, window_start, window_end"
LIFE = "id, state, timeout_at, closed_at, close_reason, open_reason, opened_microbatch, closed_microbatch"
INSIDE = "id, state, window_start, window_end, first_event_time, last_event_time"

BATCHES = (
    TOTAL.invariant(
        "closed_batches_there",
        "There are as many closed batches as the history says were closed.",
        "closed, closed_rows",
        "closed = closed_rows",
    ),
    TOTAL.invariant(
        "open_batches_there",
        "There are as many open batches as the history says were opened and not closed.",
        "opened, closed, open_rows",
        "opened - closed = open_rows",
    ),
    BATCH.invariant(
        "id",
        "The id of a batch is made of its stream, window and part.",
        "id, source, key, window_start, part",
        identity("batch", "source", "key", window_start="unix_micros(window_start)", part="part"),
    ),
    BATCH.invariant(
        "filled",
        "A batch has a stream, a window, a timeout, a cause and its numbers.",
        "id, state, source, key, part, window_start, window_end, timeout_at, open_reason, message_count, bytes, "
        "oversize",
        "source IS NOT NULL AND key IS NOT NULL AND part IS NOT NULL AND window_start IS NOT NULL AND "
        "window_end IS NOT NULL AND timeout_at IS NOT NULL AND message_count IS NOT NULL AND bytes IS NOT NULL AND "
        "oversize IS NOT NULL",
    ),
    BATCH.invariant(
        "open_reason",
        "A batch was opened by a message, a conflict or its size.",
        LIFE,
        "open_reason IN ('message', 'conflict', 'size')",
    ),
    BATCH.invariant(
        "closed_filled",
        "A closed batch says when, why and in which microbatch it closed; an open one leaves these columns empty.",
        LIFE,
        "CASE WHEN state = 'closed' THEN closed_at IS NOT NULL AND closed_microbatch IS NOT NULL AND "
        "close_reason IN ('timeout', 'flush') "
        "ELSE closed_at IS NULL AND close_reason IS NULL AND closed_microbatch IS NULL END",
    ),
    BATCH.invariant(
        "life",
        "A batch was opened in a microbatch of the history, and closed in the same or a later one.",
        f"{LIFE}, reached",
        "opened_microbatch >= 1 AND opened_microbatch <= coalesce(closed_microbatch, reached) AND "
        "(state = 'open' OR closing_microbatch IS NOT NULL)",
    ),
    BATCH.invariant(
        "window",
        "A window ends after it begins, and is no longer than the rules ever allowed.",
        f"{STREAM}, longest",
        "length_us > 0 AND length_us <= longest",
    ),
    BATCH.invariant(
        "windows_apart",
        "Windows of a stream do not overlap; only parts of one window share it.",
        f"{STREAM}, previous_start, previous_end",
        "previous_end IS NULL OR window_start >= previous_end OR "
        "(window_start = previous_start AND window_end = previous_end)",
    ),
    BATCH.invariant(
        "parts",
        "Parts of a window count 0, 1, 2, ...",
        f"{STREAM}, previous_part",
        "part = CASE WHEN window_start = previous_start THEN previous_part + 1 ELSE 0 END",
    ),
    BATCH.invariant(
        "timeout",
        "A batch times out max_delay after its window, by the rules under which it closed.",
        f"{LIFE}, window_end, delay",
        "CASE WHEN state = 'closed' THEN delay_us = delay "
        "ELSE delay_us = delay_now OR array_contains(delays, delay_us) END",
    ),
    BATCH.invariant(
        "closed_at",
        "A batch that closed by its timeout closed at its timeout.",
        LIFE,
        "state = 'open' OR close_reason = 'flush' OR closed_at = timeout_at",
    ),
    BATCH.invariant(
        "overdue",
        "A batch is open only until the clock of its source passes its timeout.",
        f"{LIFE}, window_end, source_floor",
        "state = 'closed' OR unix_micros(window_end) + delay_now > unix_micros(source_floor)",
    ),
    BATCH.invariant(
        "message_count",
        "message_count is the number of messages, and no batch is empty.",
        "id, state, message_count, found AS messages",
        "message_count = found AND found > 0",
    ),
    BATCH.invariant(
        "bytes",
        "bytes is the length of all types and payloads together.",
        "id, state, bytes, content_bytes AS found",
        "bytes = content_bytes",
    ),
    BATCH.invariant(
        "first_event_time",
        "first_event_time is the earliest of the messages.",
        f"{INSIDE}, first_inside AS earliest",
        "first_event_time = first_inside",
    ),
    BATCH.invariant(
        "last_event_time",
        "last_event_time is the latest of the messages.",
        f"{INSIDE}, last_inside AS latest",
        "last_event_time = last_inside",
    ),
    BATCH.invariant(
        "messages_inside",
        "Every message of a batch lies in its half-open window.",
        f"{INSIDE}, outside",
        "outside = 0",
    ),
    BATCH.invariant(
        "messages_complete",
        "Every message of a batch has a type and received_at.",
        f"{INSIDE}, incomplete",
        "incomplete = 0",
    ),
    BATCH.invariant("messages_sorted", "Messages are sorted by event time.", f"{INSIDE}, unsorted", "unsorted = 0"),
    BATCH.invariant(
        "size",
        "A closed batch is within max_batch_bytes, or one message that is flagged as oversize.",
        "id, state, bytes, oversize, message_count, most_bytes",
        "state = 'open' OR CASE WHEN most_bytes > 0 AND bytes > most_bytes THEN oversize AND message_count = 1 "
        "ELSE NOT oversize END",
    ),
    WINDOW_TYPE.invariant(
        "type_once_in_window",
        "A window holds at most one message of a type, unless repeats were kept before it closed.",
        "batch, source, key, window_start, type, times, kept",
        "times = 1 OR kept",
    ),
    MESSAGE.invariant(
        "message_once",
        "A message of a stream, type and event time is in one batch, once.",
        "batch, another, source, key, type, event_time, times",
        "times = 1",
    ),
    BATCH.invariant(
        "not_oversize",
        "No batch holds a message larger than max_batch_bytes.",
        "id, state, bytes, most_bytes",
        "NOT oversize",
        "info",
    ),
)

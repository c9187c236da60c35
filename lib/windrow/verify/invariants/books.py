"""The invariants of the books: progress and history, and how they agree with batches and rejections."""

from __future__ import annotations

from windrow.verify.invariants.relations import MICROBATCH, ROW, SOURCE, TOTAL, VERSION, identity

COUNTS = "id, microbatch, kind, messages_read, accepted, rejected, opened, closed"

BOOKS = (
    ROW.invariant("id_once", "An id occurs once in the ledger.", "id, state, times", "times = 1"),
    TOTAL.invariant("one_progress_row", "There is one progress row.", "progress_rows", "progress_rows = 1"),
    TOTAL.invariant(
        "books_balance",
        "Messages read = messages in open batches + in closed batches + rejected.",
        "messages_read, in_open, in_closed, rejected_rows",
        "messages_read = accounted",
    ),
    TOTAL.invariant(
        "accepted_in_batches",
        "Messages accepted = messages in batches.",
        "accepted, in_open, in_closed",
        "accepted = in_batches",
    ),
    TOTAL.invariant(
        "progress_microbatch",
        "The history has as many microbatches as the progress counts.",
        "reached, microbatches",
        "reached = microbatches",
    ),
    TOTAL.invariant(
        "progress_last",
        "The progress has the depot version and the rules of the last microbatch.",
        "depot_version, last_version, rules, last_rules",
        "microbatches = 0 OR (depot_version = last_version AND rules = last_rules)",
    ),
    MICROBATCH.invariant(
        "microbatch_numbers",
        "Microbatches count 1, 2, 3, ...",
        "id, microbatch, previous_microbatch",
        "microbatch = coalesce(previous_microbatch, 0) + 1",
    ),
    MICROBATCH.invariant(
        "microbatch_id",
        "The id of a microbatch has its number.",
        "id, microbatch",
        identity("microbatch", number="microbatch"),
    ),
    MICROBATCH.invariant(
        "microbatch_kind",
        "A microbatch is of a known kind, and only one of kind data reads messages.",
        COUNTS,
        "kind IN ('data', 'tick', 'flush', 'rules', 'pause', 'resume', 'skip', 'amend') "
        "AND (kind = 'data' OR messages_read = 0)",
    ),
    MICROBATCH.invariant(
        "microbatch_sums",
        "Messages accepted + rejected = messages read, and no count is negative.",
        COUNTS,
        "accepted + rejected = messages_read AND accepted >= 0 AND rejected >= 0 AND opened >= 0 AND closed >= 0",
    ),
    MICROBATCH.invariant(
        "microbatch_closed",
        "A microbatch closed as many batches as its row says.",
        "id, microbatch, kind, closed, closed_rows",
        "closed = closed_rows",
    ),
    MICROBATCH.invariant(
        "microbatch_rejected",
        "A microbatch rejected as many messages as its row says.",
        "id, microbatch, kind, rejected, rejected_rows",
        "rejected = rejected_rows",
    ),
    MICROBATCH.invariant(
        "depot_version_forward",
        "The depot version that was reached never goes back.",
        "id, microbatch, depot_version, previous_version",
        "depot_version >= coalesce(previous_version, depot_version)",
    ),
    MICROBATCH.invariant(
        "versions_sum",
        "The messages of the versions of a microbatch add up to what it read.",
        "id, microbatch, messages_read, listed",
        "messages_read = listed",
    ),
    MICROBATCH.invariant(
        "versions_in_order",
        "A microbatch read versions in order, after those of the one before, up to the one it reached.",
        "id, microbatch, depot_version, previous_version, first_version, last_version",
        "first_version IS NULL OR (last_version <= depot_version AND first_version > coalesce(previous_version, -1) "
        "AND versions_read = array_sort(versions_read))",
    ),
    VERSION.invariant(
        "version_once", "A depot version is read once.", "version, microbatch, another, times", "times = 1"
    ),
    SOURCE.invariant(
        "source_open",
        "The progress counts what is open of each source, and no open window ends before next_window_end.",
        "source, open_batches, found_batches, open_messages, found_messages, open_bytes, found_bytes, "
        "next_window_end, first_window_end",
        "open_batches = found_batches AND open_messages = found_messages AND open_bytes = found_bytes AND "
        "(next_window_end IS NULL) = (found_batches = 0) AND coalesce(next_window_end <= first_window_end, true)",
    ),
    SOURCE.invariant(
        "source_clock",
        "The progress has the clock, the floor and the cut of each source as the history recorded them last.",
        "source, id, clock, recorded_clock, floor, recorded_floor, cut, recorded_cut, microbatch",
        f"clock IS NOT DISTINCT FROM recorded_clock AND floor IS NOT DISTINCT FROM recorded_floor AND "
        f"cut IS NOT DISTINCT FROM recorded_cut AND {identity('source', 'source')}",
    ),
)

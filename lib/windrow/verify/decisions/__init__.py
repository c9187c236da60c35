"""Derive every decision from the depot's log and the rules, and compare it with the ledger.

Clocks and verdicts are derived in SQL, over all messages at once (`relations`). The windows of each stream are derived
message by message (`reference_model`). No code of `windrow.batching`, `clock`, `floors` or `step` is used. Three things
cannot be derived and are taken from the ledger: how far ticks raised floors, when a flush happened, and which messages
were ahead of the machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from windrow.errors import first_line
from windrow.verify.decisions.comparison import check_members, check_rejected, check_windows
from windrow.verify.decisions.microbatch_history import MicrobatchHistory, is_whole, read_history
from windrow.verify.decisions.recorded import check_ahead, check_clocks, check_rules, check_ticks
from windrow.verify.decisions.relations import relations
from windrow.verify.decisions.windows import derive
from windrow.verify.depot import Depot
from windrow.verify.report import Difference
from windrow.verify.snapshot import Snapshot

MOST = 5_000_000
# Messages that were decided, and of the streams with batches: all, whole ones, derived ones, others and their messages.
SUMMARY = """
SELECT (SELECT count(*) FROM judged AS j JOIN streams AS s
        ON s.source IS NOT DISTINCT FROM j.source AND s.key IS NOT DISTINCT FROM j.key WHERE s.whole),
    count(*) FILTER (WHERE there), count(*) FILTER (WHERE there AND whole),
    count(*) FILTER (WHERE chosen AND messages > 0), count(*) FILTER (WHERE whole AND NOT chosen),
    coalesce(sum(messages) FILTER (WHERE whole AND NOT chosen), 0)::BIGINT
FROM streams
"""


@dataclass(frozen=True, slots=True)
class Decided:
    """The result of `decide`: how many messages were decided again, and in how many of the streams all windows were."""

    messages: int
    streams: int
    derived: int
    differences: tuple[Difference, ...] = ()
    findings: tuple[str, ...] = ()


def decide(snapshot: Snapshot, depot: Depot, most: int | None, progress: Callable[[int, int], None]) -> Decided:
    """Derive the decisions of a ledger version, as far as possible, and compare them with the ledger.

    Windows are derived for streams with `most` messages together; None: for all. When this takes longer, `progress` is
    called with the number of messages done and of all messages.
    """
    if not is_whole(snapshot):
        finding = f"the decisions in ledger version {snapshot.version}, whose history is not whole"
        return Decided(0, 0, 0, findings=(finding,))
    from duckdb import DataError

    try:
        return _compared(snapshot, depot, read_history(snapshot, depot.readable), most, progress)
    except DataError as error:
        expects = "times and numbers from which the rules can derive the decisions"
        return Decided(0, 0, 0, (Difference("decisions", expects, first_line(error)),))


def _compared(
    snapshot: Snapshot, depot: Depot, history: MicrobatchHistory, most: int | None, progress: Callable[[int, int], None]
) -> Decided:
    """Return the result of `decide`. Raises DuckDB's DataError for a damaged ledger with values out of range."""
    with relations(snapshot, depot, history, most) as connection:
        derive(connection, history, progress)
        differences = (
            *check_rules(snapshot, history),
            *check_clocks(connection, history),
            *check_ticks(connection),
            *check_ahead(connection),
            *check_rejected(connection),
            *check_windows(connection),
            *check_members(connection),
        )
        [(messages, streams, whole, derived, left, left_messages)] = connection.sql(SUMMARY).fetchall()
    where = f"in ledger version {snapshot.version}"
    return Decided(
        messages, streams, derived, differences, tuple(_findings(where, streams, whole, left, left_messages))
    )


def _findings(where: str, streams: int, whole: int, left: int, left_messages: int) -> Iterator[str]:
    """Say for which streams not every decision was derived, and why."""
    if whole < streams:
        yield (
            f"the decisions on {streams - whole:,} of {streams:,} streams {where}, "
            "which have messages in these depot versions"
        )
    if left:
        yield (
            f"the windows of {left:,} of {streams:,} streams {where}, the largest ones, "
            f"with {left_messages:,} messages together (--all derives all again)"
        )

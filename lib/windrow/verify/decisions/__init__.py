"""Derive every decision from the depot's log and the rules, and compare it with the ledger.

Clocks and verdicts are derived in SQL (`relations`), of some streams at a time. The windows of each stream are derived
message by message (`reference_model`). No code of `windrow.batching`, `clock`, `floors` or `step` is used. Three things
cannot be derived and are taken from the ledger: how far ticks raised floors, when a flush happened, and which messages
were ahead of the machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windrow.errors import first_line
from windrow.verify.decisions.comparison import check_members, check_rejected, check_windows
from windrow.verify.decisions.microbatch_history import is_whole, read_history
from windrow.verify.decisions.recorded import check_ahead, check_clocks, check_rules, check_ticks
from windrow.verify.decisions.reference_model import SourceHistory
from windrow.verify.decisions.relations import choose_streams, judge_part, relate_history
from windrow.verify.decisions.windows import derive, source_histories
from windrow.verify.depot import Depot
from windrow.verify.report import Difference, Found
from windrow.verify.snapshot import Snapshot

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MOST = 5_000_000
MODEL_BYTES = 1_000  # of memory for each message of a stream whose windows are derived, measured
DECIDED = """
SELECT count(*) FROM judged AS j JOIN streams AS s
    ON s.source IS NOT DISTINCT FROM j.source AND s.key IS NOT DISTINCT FROM j.key WHERE s.whole AND j.batch IS NULL
"""
# Of the streams with batches: all, whole ones, derived ones; the others of the whole ones and their messages, first
# those that are too large for the memory.
STREAMS = """
SELECT count(*) FILTER (WHERE there), count(*) FILTER (WHERE there AND whole),
    count(*) FILTER (WHERE chosen AND messages > 0),
    count(*) FILTER (WHERE whole AND large), coalesce(sum(messages) FILTER (WHERE whole AND large), 0)::BIGINT,
    count(*) FILTER (WHERE whole AND NOT chosen AND NOT large),
    coalesce(sum(messages) FILTER (WHERE whole AND NOT chosen AND NOT large), 0)::BIGINT,
    coalesce(sum(messages) FILTER (WHERE chosen), 0)::BIGINT
FROM streams
"""


@dataclass(slots=True)
class Decisions:
    """The decisions of a ledger version derived again: clocks and rules at once, then streams part by part.

    `messages` were decided again; of the `streams` with batches, the windows of `derived` were. What was decided up to
    the microbatch `verified` is taken as right. Windows of `chosen` messages are to be derived, those of `placed` are.
    """

    connection: DuckDBPyConnection
    snapshot: Snapshot
    verified: int = 0
    messages: int = 0
    streams: int = 0
    derived: int = 0
    found: list[Found] = field(default_factory=list)
    ended: bool = False
    sources: dict[str, SourceHistory] = field(default_factory=dict)
    chosen: int = 0
    placed: int = 0

    def check(self, depot: Depot, most: int | None, max_memory_bytes: int) -> None:
        """Check clocks and rules, and choose the streams whose windows are derived.

        These have `most` messages together, None: all; but none has more than there is memory for.
        """
        if not is_whole(self.snapshot):
            self.found = [f"the decisions in ledger version {self.snapshot.version}, whose history is not whole"]
            self.ended = True
            return
        with self._in_range():
            history = read_history(self.snapshot, depot.readable, self.verified)
            relate_history(self.connection, history, depot.rows)
            choose_streams(self.connection, history, most, max_memory_bytes // MODEL_BYTES)
            self.found += [
                *check_rules(self.snapshot, history),
                *check_clocks(self.connection, history),
                *check_ticks(self.connection),
                *check_ahead(self.connection),
            ]
            self.sources = source_histories(self.connection, history)
            [(self.streams, whole, self.derived, *left, self.chosen)] = self.connection.sql(STREAMS).fetchall()
            self.found += _findings(f"in ledger version {self.snapshot.version}", self.streams, whole, *left)

    def check_part(self, progress: Callable[[int], None]) -> None:
        """Derive the decisions on the messages of the loaded part, and compare them with the ledger.

        `progress` is called with the messages whose windows are derived.
        """
        if self.ended:
            return
        with self._in_range():
            judge_part(self.connection)
            before = self.placed
            self.placed += derive(self.connection, self.sources, lambda done: progress(before + done))
            self.found += [
                *check_rejected(self.connection),
                *check_windows(self.connection),
                *check_members(self.connection),
            ]
            self.messages += self.connection.sql(DECIDED).fetchall()[0][0]

    @contextmanager
    def _in_range(self) -> Iterator[None]:
        """End with one difference for a damaged ledger with values out of range, from which nothing is derived."""
        from duckdb import DataError

        try:
            yield
        except DataError as error:
            expects = "times and numbers from which the rules can derive the decisions"
            self.found = [Difference("decisions", expects, first_line(error))]
            self.messages = self.streams = self.derived = 0
            self.ended = True


def _findings(
    where: str, streams: int, whole: int, large: int, large_messages: int, left: int, left_messages: int
) -> Iterator[str]:
    """Say for which streams not every decision was derived, and why."""
    if whole < streams:
        yield (
            f"the decisions on {streams - whole:,} of {streams:,} streams {where}, "
            "which have messages in these depot versions"
        )
    if large:
        yield (
            f"the windows of {large:,} of {streams:,} streams {where}, with {large_messages:,} messages together, "
            "each of which is too large for max_memory_bytes"
        )
    if left:
        yield (
            f"the windows of {left:,} of {streams:,} streams {where}, the largest ones, "
            f"with {left_messages:,} messages together (--all derives all again)"
        )

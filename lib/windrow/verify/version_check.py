"""The check of one ledger version against the depot, as many streams at a time as fit into memory.

The parts are in temporary files of this process (`StoredParts`), or on Spark's executors (`executors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeAlias

import pyarrow as pa
from duckdb import DuckDBPyConnection

from windrow.delta.database import joins_as_written
from windrow.verify.base import Base
from windrow.verify.decisions import DecisionCheck, Decisions, Derivation, decide_part
from windrow.verify.depot import DepotMessages
from windrow.verify.messages import MessageMatch, check_counts, match
from windrow.verify.parts import EVERY, Part, PartedRows, divide
from windrow.verify.quality.parted import check_overall, check_part, create_views
from windrow.verify.raw.checks import check_raw
from windrow.verify.report import Books, Difference, Found, VerifyProgress, merge_findings
from windrow.verify.snapshot import LedgerContents
from windrow.verify.tables import load_nothing, load_open, load_part

COUNTS = """
SELECT coalesce(sum(message_rows) FILTER (WHERE state = 'open'), 0)::BIGINT AS in_open,
    coalesce(sum(message_rows) FILTER (WHERE state = 'closed'), 0)::BIGINT AS in_closed,
    (SELECT count(*) FROM all_rejected) AS rejected
FROM all_batches
"""
STREAMS = "SELECT count(*) FROM (SELECT DISTINCT source, key FROM batches)"
Progress: TypeAlias = Callable[[VerifyProgress], None]


@dataclass(frozen=True, slots=True)
class PartResult:
    """What the check of a part found: about its messages and invariants, and about its decisions."""

    matched: MessageMatch
    findings: Sequence[Found]
    redecided: DecisionCheck
    streams: int


class Parts(Protocol):
    """The streams of a ledger version and its depot in parts, and queries over all of them."""

    @property
    def count(self) -> int:
        """Return how many parts there are."""

    def ask(self, query: str) -> pa.Table:
        """Return the answer to a query over `all_batches` and `all_rejected`, in SQL for both DuckDB and Spark."""

    def ask_depot(self, query: str) -> pa.Table:
        """Return the answer to a query over `stream`, the messages of the depot; rows may come in parts."""

    def check(self, derivation: Derivation | None, progress: Callable[[int], None]) -> Iterator[PartResult]:
        """Yield what the check of each part finds; `progress` gets the number of messages derived in a part so far."""

    def check_overall(self) -> Iterator[Difference]:
        """Check the invariants that need no messages, of all streams."""


@dataclass(frozen=True)
class StoredParts:
    """Parts of `ledger`, of the depot's `messages`, and of what was open in a base; one connection checks them."""

    connection: DuckDBPyConnection
    snapshot: LedgerContents
    depot: DepotMessages
    ledger: PartedRows
    messages: PartedRows
    base: Base | None = None

    def __post_init__(self) -> None:
        load_nothing(self.connection, self.ledger)
        create_views(self.connection, "part")

    @cached_property
    def _parts(self) -> list[Part]:
        stored = [self.ledger, self.messages, *([self.base.rows] if self.base else [])]
        return divide([rows.byte_count for rows in stored], self.ledger.max_memory_bytes)

    @property
    def count(self) -> int:
        """Return how many parts there are."""
        return len(self._parts)

    def ask(self, query: str) -> pa.Table:
        """Return the answer to a query over `all_batches` and `all_rejected`."""
        return self.connection.sql(query).to_arrow_table()

    def ask_depot(self, query: str) -> pa.Table:
        """Return the answer to a query over `stream`, the messages of the depot."""
        self.connection.register("stream", self.messages.read("depot", EVERY))
        with joins_as_written(self.connection):
            return self.ask(query)

    def check(self, derivation: Derivation | None, progress: Callable[[int], None]) -> Iterator[PartResult]:
        """Yield what the check of each part finds."""
        for part in self._parts:
            load_part(self.connection, part, self.ledger, self.messages)
            if self.base:
                load_open(self.connection, part, self.base.rows, self.base.since.depot_version)
            matched, differences = match(self.connection, self.snapshot, self.depot)
            findings = [*differences, *check_part(self.connection)]
            decided = decide_part(self.connection, derivation, progress)
            [(streams,)] = self.connection.sql(STREAMS).fetchall()
            yield PartResult(matched, findings, decided, streams)
            derivation = None if decided.ended else derivation

    def check_overall(self) -> Iterator[Difference]:
        """Check the invariants that need no messages, of all streams."""
        return check_overall(self.connection)


def check_version(
    snapshot: LedgerContents, depot: DepotMessages, parts: Parts, decisions: Decisions, progress: Progress
) -> tuple[Books, list[Found]]:
    """Check streams part by part, and the rest over all parts.

    `decisions` says what is derived again. Returns the books, and findings on what is wrong or could not be checked.
    """
    matched, by_part = _check_parts(snapshot, parts, decisions, progress)
    [counts] = parts.ask(COUNTS).to_pylist()
    findings = [
        *check_counts(snapshot, depot, matched, sum(counts.values())),
        *merge_findings(by_part),
        *check_raw(snapshot, depot),
        *parts.check_overall(),
        *merge_findings(decisions.findings),
    ]
    partly = depot.readable > depot.first
    books = Books(
        ledger_version=snapshot.version,
        depot_version=snapshot.progress.depot_version,
        microbatch_count=snapshot.history.num_rows,
        messages_read=snapshot.messages_read,
        in_open_batches=counts["in_open"],
        in_closed_batches=counts["in_closed"],
        rejected=counts["rejected"],
        rejected_by_format=snapshot.raw.rejected.num_rows if snapshot.raw else 0,
        matched=matched.ok,
        lost=matched.lost,
        duplicated=0 if partly else matched.duplicated,
        unexpected=0 if partly else matched.unexpected,
        unchecked=matched.extra if partly else 0,
        redecided=decisions.messages,
        stream_count=decisions.figures.streams,
        derived_stream_count=decisions.figures.derived,
    )
    return books, findings


def _check_parts(
    snapshot: LedgerContents, parts: Parts, decisions: Decisions, progress: Progress
) -> tuple[MessageMatch, list[Found]]:
    """Check all parts; return how their messages match, and findings except those on decisions."""
    matched, by_part, figures = MessageMatch(), list[Found](), decisions.figures
    standing = VerifyProgress(
        snapshot.version, part_count=parts.count, stream_count=figures.streams, message_count=figures.chosen_messages
    )

    def derived(done: int) -> None:
        progress(replace(standing, derived_message_count=decisions.placed + done))

    progress(standing)
    for number, result in enumerate(parts.check(decisions.derivation, derived), 1):
        matched += result.matched
        by_part += result.findings
        decisions.add(result.redecided)
        standing = replace(
            standing,
            parts_done=number,
            proven_stream_count=standing.proven_stream_count + result.streams,
            derived_message_count=decisions.placed,
            difference_count=len(merge_findings([*by_part, *decisions.findings])),
        )
        progress(standing)
    return matched, by_part

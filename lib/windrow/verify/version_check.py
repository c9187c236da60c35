"""The check of one ledger version against the depot, as many streams at a time as fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from windrow.verify.base import Base
from windrow.verify.decisions import Decisions
from windrow.verify.depot import DepotMessages
from windrow.verify.messages import MessageMatch, check_counts, check_versions
from windrow.verify.part_check import Parts
from windrow.verify.raw.checks import check_raw
from windrow.verify.report import Books, Found, VerifyProgress, merge_findings
from windrow.verify.snapshot import LedgerContents

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

COUNTS = """
SELECT coalesce(sum(message_rows) FILTER (WHERE state = 'open'), 0)::BIGINT AS in_open,
    coalesce(sum(message_rows) FILTER (WHERE state = 'closed'), 0)::BIGINT AS in_closed,
    (SELECT count(*) FROM all_rejected) AS rejected
FROM all_batches
"""
Progress: TypeAlias = Callable[[VerifyProgress], None]


class VersionCheck:
    """The check of one ledger version against the depot: `findings` are what is wrong or could not be checked."""

    def __init__(
        self, snapshot: LedgerContents, depot: DepotMessages, max_memory_bytes: int, base: Base | None
    ) -> None:
        """Check within so much memory what came after the base, without one everything."""
        self._snapshot, self._depot = snapshot, depot
        self._max_memory_bytes = max_memory_bytes
        self._verified = base.since.microbatch if base else 0
        self.findings: list[Found] = []

    def run(self, connection: DuckDBPyConnection, parts: Parts, most: int | None, progress: Progress) -> Books:
        """Check part by part what concerns streams, and the rest over all parts; return the books.

        `connection` has the tables that are the same for all streams.
        """
        snapshot, depot = self._snapshot, self._depot
        decisions = Decisions(snapshot, self._verified)
        asks = parts.ask, parts.ask_depot
        decisions.check(connection, depot.readable, most, self._max_memory_bytes, *asks)
        matched, by_part = self._check_parts(parts, decisions, progress)
        [counts] = parts.ask(COUNTS).to_pylist()
        self.findings += check_versions(snapshot, depot)
        self.findings += check_counts(snapshot, depot, matched, sum(counts.values()))
        self.findings += [*merge_findings(by_part), *check_raw(snapshot, depot), *parts.check_overall()]
        self.findings += merge_findings(decisions.findings)
        partly = depot.readable > depot.first
        return Books(
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

    def _check_parts(self, parts: Parts, decisions: Decisions, progress: Progress) -> tuple[MessageMatch, list[Found]]:
        """Check all parts; return what their messages are, and what is wrong but for the decisions."""
        matched, by_part, figures = MessageMatch(), list[Found](), decisions.figures
        standing = VerifyProgress(
            self._snapshot.version,
            part_count=parts.count,
            stream_count=figures.streams,
            message_count=figures.chosen_messages,
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

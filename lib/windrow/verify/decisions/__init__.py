"""Derive every decision from the depot's log and the rules, and compare it with the ledger.

Clocks and verdicts are derived in SQL (`relations`), a few streams at a time. The windows of each stream are derived
message by message (`reference_model`). No code of `windrow.batching`, `clock`, `floors` or `step` is used. Three things
cannot be derived and are taken from the ledger: how far ticks raised floors, when a flush happened, and which messages
were ahead of the machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from duckdb import DataError, DuckDBPyConnection

from windrow.errors import first_line
from windrow.verify.decisions import comparison
from windrow.verify.decisions.reference_model import SourceHistory
from windrow.verify.decisions.relations import Ask, Figures, StreamChoice, choose_streams, judge_part, relate_history
from windrow.verify.decisions.windows import derive, is_whole, read_history, source_histories
from windrow.verify.report import Difference, Found
from windrow.verify.snapshot import LedgerContents

MOST = 5_000_000
MODEL_BYTES = 1_000  # measured: the memory for each message of a stream whose windows are derived
DECIDED = """
SELECT count(*) FROM judged AS j JOIN streams AS s
    ON s.source IS NOT DISTINCT FROM j.source AND s.key IS NOT DISTINCT FROM j.key WHERE s.whole AND j.batch IS NULL
"""
NONE = Figures()


@dataclass(frozen=True, slots=True)
class Derivation:
    """What determines the decisions on a part's messages, besides its rows and the relations `OF_PARTS`."""

    sources: Mapping[str, SourceHistory]
    choice: StreamChoice


OF_PARTS = {
    "versions": "FROM versions",
    "microbatches": "FROM microbatches",
    "ahead": "FROM ahead",
    "moves": "SELECT source, version, sent, before FROM moves WHERE sent",
}


@dataclass(frozen=True, slots=True)
class DecisionCheck:
    """What was derived for a part: how many `messages` were decided again, and how many of them `placed` in windows.

    If `ended`, nothing can be derived.
    """

    findings: Sequence[Found] = ()
    messages: int = 0
    placed: int = 0
    ended: bool = False


@dataclass(slots=True)
class Decisions:
    """The decisions of a ledger version derived again: clocks and rules first, then streams part by part.

    `messages` counts those decided again, `placed` those placed in windows so far, and `figures` the streams whose
    windows are derived. Decisions up to the microbatch `verified` are taken as correct.
    """

    snapshot: LedgerContents
    verified: int = 0
    messages: int = 0
    placed: int = 0
    figures: Figures = NONE
    derivation: Derivation | None = None
    findings: list[Found] = field(default_factory=list)

    def check(
        self,
        connection: DuckDBPyConnection,
        readable: int,
        most: int | None,
        max_memory_bytes: int,
        ask: Ask,
        sent: Ask,
    ) -> None:
        """Check clocks and rules, and choose the streams whose windows are derived.

        These have `most` messages in total (None: all), and each must fit in memory. `readable` is the first depot
        version that can be read. `ask` answers queries about all rows of the ledger, `sent` the query for what sources
        sent.
        """
        if not is_whole(self.snapshot):
            self.findings = [f"the decisions in ledger version {self.snapshot.version}, whose history is not whole"]
            return
        try:
            history = read_history(self.snapshot, readable, self.verified)
            relate_history(connection, history, ask, sent)
            self.figures, choice = choose_streams(history, most, max_memory_bytes // MODEL_BYTES, ask)
            self.findings += [
                *comparison.check_rules(self.snapshot, history),
                *comparison.check_clocks(connection, history),
                *comparison.check_ticks(connection),
            ]
            self.derivation = Derivation(source_histories(connection, history), choice)
            self.findings += _findings(f"in ledger version {self.snapshot.version}", self.figures)
        except DataError as error:
            self.add(_out_of_range(error))

    def add(self, part: DecisionCheck) -> None:
        """Add what was derived for a part, unless another part ended the derivation."""
        if part.ended:
            self.figures, self.messages, self.placed, self.derivation = NONE, 0, 0, None
            self.findings = [*part.findings]
        elif self.derivation is not None:
            self.messages += part.messages
            self.placed += part.placed
            self.findings += part.findings


def decide_part(
    connection: DuckDBPyConnection, derivation: Derivation | None, progress: Callable[[int], None]
) -> DecisionCheck:
    """Derive the decisions on the messages of the loaded part, and compare them with the ledger.

    `progress` is called with the number of messages whose windows are derived.
    """
    if derivation is None:
        return DecisionCheck()
    try:
        judge_part(connection, derivation.choice)
        placed = derive(connection, derivation.sources, progress)
        differences = [difference for check in comparison.OF_PART for difference in check(connection)]
        return DecisionCheck(differences, connection.sql(DECIDED).fetchall()[0][0], placed)
    except DataError as error:
        return _out_of_range(error)


def _out_of_range(error: Exception) -> DecisionCheck:
    """Return the only difference for a damaged ledger with values out of range, from which nothing can be derived."""
    expects = "times and numbers from which the rules can derive the decisions"
    return DecisionCheck([Difference("decisions", expects, first_line(error))], ended=True)


def _findings(where: str, figures: Figures) -> Iterator[str]:
    """Say for which streams not every decision was derived, and why."""
    streams, whole = figures.streams, figures.whole
    if whole < streams:
        yield (
            f"the decisions on {streams - whole:,} of {streams:,} streams {where}, "
            "which have messages in these depot versions"
        )
    if figures.large:
        yield (
            f"the windows of {figures.large:,} of {streams:,} streams {where}, "
            f"with {figures.large_messages:,} messages together, each of which is too large for max_memory_bytes"
        )
    if figures.left:
        yield (
            f"the windows of {figures.left:,} of {streams:,} streams {where}, the largest ones, "
            f"with {figures.left_messages:,} messages together (--all derives all again)"
        )

"""Replay the recorded log into a new ledger, and compare that with the original one.

The content of a ledger follows from the depot and from the ticks, flushes and rules that the ledger recorded. So the
same depot versions with the same record must produce the same result, to the last byte of the canonical form, in
microbatches of any size. With other rules, or without the recorded ticks, the comparison shows the effect: which
batches appear, disappear or change, and where their messages went.

A replay of part of the log begins with a copy of the ledger as the microbatch before that part left it. Source of the
idea: Triceps, which records the actions of the scheduler so that a replay repeats them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from windrow.batching.rules import Rules
from windrow.delta.locations import is_catalog_name
from windrow.delta.scratch import scratch_directory
from windrow.errors import DepotUnreadableError, NotFoundError, SettingsError
from windrow.reading.digests import LedgerSelection, Streams
from windrow.reading.tables import open_depot, open_ledger, recorded_rules
from windrow.replaying.amendment import amend
from windrow.replaying.comparison import compare
from windrow.replaying.legs import MicrobatchRange, ReplaySegment, find_span, recorded_segments, with_rules
from windrow.replaying.player import SegmentReplayer, create_replay_ledger
from windrow.replaying.report import Amendment, Comparison, LedgerDigest, Move, Outcome, Replay, ReplayChange
from windrow.runtime.opening import tables_of
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Amendment", "Comparison", "LedgerDigest", "Move", "Outcome", "Replay", "ReplayChange", "ReplayRange", "amend",
    "replay",
]  # fmt: skip

EARLIER = "Replay the rest: use --from with a version or time that `windrow doctor` says can be read."
"""The hint if the depot's early versions are gone."""


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """A part of the log: a range of depot versions, and the streams of some keys and sources (empty: all).

    `start` and `end` are versions, or times of the depot's commits (ISO 8601).
    """

    start: str | None = None
    end: str | None = None
    keys: Sequence[str] = ()
    sources: Sequence[str] = ()

    @property
    def streams(self) -> Streams:
        """Return the streams of these keys and sources."""
        names = {"key": tuple(self.keys), "source": tuple(self.sources)}
        return {name: values for name, values in names.items() if values}


def replay(
    settings: Settings | None = None,
    into: str | None = None,
    rules: Rules | None = None,
    ticks: Literal["reuse", "fresh"] = "reuse",
    portion: ReplayRange | None = None,
    limit: int = 20,
    spark: SparkSession | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Replay:
    """Replay the history of a ledger into a new one, and compare the two.

    The embedded engine is used unless `spark` is given or the settings say `engine = "spark"`.

    Args:
        settings: The settings that name depot and ledger, by default those of `windrow.toml`.
        into: The path of the new ledger; without it the ledger is deleted after the comparison.
        rules: Rules to use instead of the recorded ones.
        ticks: `"fresh"` leaves out recorded ticks and flushes.
        portion: A part of the log; None for all.
        limit: The most changes and moves that the result lists.
        spark: A session to replay with.
        progress: Called with the number of messages done and the total.

    Returns:
        The comparison, and the counts of both sides.

    Raises:
        SettingsError: A setting is wrong.
        NotFoundError: The depot does not have the `portion`.
        TableMissingError: There is no such depot or ledger.
        IncompatibleTableError: A table is not what it must be.
        DepotUnreadableError: The depot no longer has versions that the ledger read.
        DepotChangedError: The depot's rows are not those that the ledger read.
        TableUnwritableError: The disk is full.

    Example:
        >>> settings = windrow.Settings(depot="data/depot", ledger="data/ledger")
        >>> windrow.replay(settings).replayed.rejected_by_reason
        {}
    """
    settings, portion = settings or Settings.load(), portion or ReplayRange()
    _require(settings, into, ticks, portion.streams)
    with ExitStack() as left:
        place = into or str(left.enter_context(scratch_directory()) / "ledger")
        engine = "spark" if spark is not None or settings.engine == "spark" else "embedded"
        chosen = settings.model_copy(update={"ledger": place, "engine": engine})
        span = find_span(settings.ledger, tables_of(chosen, spark)[0], portion.start, portion.end)
        rules_json = None if rules is None else rules.to_json()
        legs = with_rules(rules_json, ticks, recorded_segments(span.end, span.after, span.through))
        player = SegmentReplayer(
            chosen, _needed_streams(portion.streams, legs), lambda done: progress(done, span.message_count), spark
        )
        _play(player, span, legs)
        part = LedgerSelection(span.after, portion.streams)
        ledgers, microbatches = (span.end, open_ledger(place)), (span.through - span.after, player.microbatches)
        sides, comparison = compare(ledgers, microbatches, part, limit, settings.max_memory_bytes)
        _require_some(sides, portion.streams)
        return Replay(
            into=into,
            ticks=ticks,
            equal=comparison is None,
            depot=settings.depot,
            ledger=settings.ledger,
            first_depot_version=span.first,
            last_depot_version=span.last,
            message_count=span.message_count,
            rules=None if rules_json is None else recorded_rules(rules_json),
            keys=tuple(portion.keys),
            sources=tuple(portion.sources),
            recorded=sides[0],
            replayed=sides[1],
            comparison=comparison,
        )


def _require(settings: Settings, into: str | None, ticks: str, streams: Streams) -> None:
    if ticks not in ("reuse", "fresh"):
        raise SettingsError(f"ticks = {ticks!r} is not valid", "Use reuse or fresh.")
    if into is not None and is_catalog_name(into):
        raise SettingsError(f"{into} is the name of a catalog table", f"Use a path, for example ./{into}.")
    if into is not None and streams:
        raise SettingsError(
            "a replay of some streams cannot be kept, because a ledger holds every message of its depot",
            "Leave out --into: the streams are compared, and nothing is kept.",
        )
    ledger = open_ledger(settings.ledger)
    open_depot(settings.depot, ledger, ledger.progress())


def _require_some(sides: tuple[LedgerDigest, LedgerDigest], streams: Streams) -> None:
    """Raise NotFoundError for streams without messages: the name is probably misspelt."""
    if streams and not any(side.batch_count or side.rejected_by_reason for side in sides):
        named = " and ".join(f"{name} {', '.join(map(repr, values))}" for name, values in streams.items())
        raise NotFoundError(f"no message of {named} was read", "`windrow show` lists keys and sources.")


def _needed_streams(streams: Streams, legs: Sequence[ReplaySegment]) -> Streams:
    """Return the streams that must be played so that the chosen ones have the same result as among all.

    The keys of a source share its clock, and the cuts of a flush depend on all open batches: after a flush the whole
    source must be played.
    """
    flushed = any(leg.flushed_at is not None for leg in legs)
    return {name: values for name, values in streams.items() if name == "source" or not flushed}


def _play(player: SegmentReplayer, span: MicrobatchRange, legs: Sequence[ReplaySegment]) -> None:
    create_replay_ledger(*player.tables(legs[0]), span, legs[0].rules)
    try:
        for leg in legs:
            player.play(leg)
    except DepotUnreadableError as error:
        raise DepotUnreadableError(error.message, EARLIER) from error
    player.finish()

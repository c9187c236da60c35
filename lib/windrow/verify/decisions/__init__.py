"""Derive every decision from the depot's log and the rules, and compare it with the ledger.

Clocks and verdicts are computed over all messages at once. The windows of each stream are derived message by message
(`reference_model`). No code of `windrow.batching`, `clock`, `floors` or `step` is used. Three things cannot be derived
and are taken from the ledger: how far ticks raised floors, when a flush happened, and which messages were ahead of the
machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from windrow.verify.decisions.arrived import Held, Streams, ahead_from, encode
from windrow.verify.decisions.comparison import check_members, check_rejected, check_windows
from windrow.verify.decisions.microbatch_history import is_whole, read_history
from windrow.verify.decisions.recorded import check_ahead, check_clocks, check_rules, check_ticks
from windrow.verify.decisions.source_history import SourceHistories
from windrow.verify.decisions.verdicts import judge
from windrow.verify.decisions.windows import ChosenStreams, choose, derive
from windrow.verify.depot import Depot
from windrow.verify.report import Difference
from windrow.verify.snapshot import Snapshot

MOST = 5_000_000
CHECKS = (
    "rules", "clocks by the log", "ticks", "clock_ahead", "decisions", "windows by the rules", "messages by the rules",
)  # fmt: skip


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
    history = read_history(snapshot, depot.readable)
    streams, arrived, held = encode(snapshot, depot, history)
    latest = ahead_from(snapshot, history)
    verdicts, clocks = judge(arrived, history, latest, held.clock_source)
    chosen = choose(streams, arrived, verdicts, most)
    derived = derive(streams, arrived, verdicts, SourceHistories(snapshot, clocks, held), chosen, progress)
    differences = (
        *check_rules(snapshot, history),
        *check_clocks(snapshot, streams, clocks, held),
        *check_ticks(snapshot, clocks, held),
        *check_ahead(snapshot, history, latest),
        *check_rejected(snapshot, streams, arrived, verdicts, held),
        *check_windows(snapshot, streams, held, chosen, derived),
        *check_members(snapshot, arrived, held, chosen, derived),
    )
    decided = int(np.sum(streams.whole[arrived.stream]))
    there = np.unique(held.batch_stream).size
    return Decided(decided, there, chosen.streams, differences, tuple(_findings(snapshot, streams, held, chosen)))


def _findings(snapshot: Snapshot, streams: Streams, held: Held, chosen: ChosenStreams) -> Iterator[str]:
    """Say for which streams not every decision was derived, and why."""
    whole = streams.whole[np.unique(held.batch_stream)]
    where = f"in ledger version {snapshot.version}"
    if not whole.all():
        yield (
            f"the decisions on {np.sum(~whole):,} of {whole.size:,} streams {where}, "
            "which have messages in these depot versions"
        )
    if chosen.left:
        yield (
            f"the windows of {chosen.left:,} of {whole.size:,} streams {where}, the largest ones, "
            f"with {chosen.left_messages:,} messages together (--all derives all again)"
        )

"""Every decision again, from the log and the rules, beside what the ledger has.

Clocks and what becomes of each message are computed over all messages at once, the windows of each stream are told
again message by message (`retelling`). Nothing of `windrow.batching`, `clock`, `floors` or `step` is used. What cannot
be derived is taken from the ledger: how far ticks raised floors, when a flush was, which messages were ahead of the
machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from windrow.verify.decisions.arrived import Held, Streams, ahead_from, encode
from windrow.verify.decisions.comparison import check_members, check_rejected, check_windows
from windrow.verify.decisions.microbatch_history import is_whole, read_course
from windrow.verify.decisions.recorded import check_ahead, check_clocks, check_rules, check_ticks
from windrow.verify.decisions.source_history import Pasts
from windrow.verify.decisions.verdicts import judge
from windrow.verify.decisions.windows import Chosen, choose, retell
from windrow.verify.depot import Depot
from windrow.verify.report import Difference
from windrow.verify.snapshot import Snapshot

MOST = 5_000_000
CHECKS = (
    "rules", "clocks by the log", "ticks", "clock_ahead", "decisions", "windows by the rules", "messages by the rules",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decided:
    """What came of it: how many messages were decided again and how many streams told again, of how many."""

    messages: int
    streams: int
    retold: int
    differences: tuple[Difference, ...] = ()
    findings: tuple[str, ...] = ()


def decide(snapshot: Snapshot, depot: Depot, most: int | None, progress: Callable[[int, int], None]) -> Decided:
    """Decide again what can be decided of a ledger version, and compare.

    Windows are told again for streams of `most` messages together, None: for all. `progress` is told how many messages
    of how many, when it takes longer.
    """
    if not is_whole(snapshot):
        finding = f"the decisions in ledger version {snapshot.version}, whose history is not whole"
        return Decided(0, 0, 0, findings=(finding,))
    course = read_course(snapshot, depot.readable)
    streams, arrived, held = encode(snapshot, depot, course)
    latest = ahead_from(snapshot, course)
    fates, clocks = judge(arrived, course, latest, held.clock_source)
    chosen = choose(streams, arrived, fates, most)
    retold = retell(streams, arrived, fates, Pasts(snapshot, clocks, held), chosen, progress)
    differences = (
        *check_rules(snapshot, course),
        *check_clocks(snapshot, streams, clocks, held),
        *check_ticks(snapshot, clocks, held),
        *check_ahead(snapshot, course, latest),
        *check_rejected(snapshot, streams, arrived, fates, held),
        *check_windows(snapshot, streams, held, chosen, retold),
        *check_members(snapshot, arrived, held, chosen, retold),
    )
    decided = int(np.sum(streams.whole[arrived.stream]))
    there = np.unique(held.batch_stream).size
    return Decided(decided, there, chosen.streams, differences, tuple(_findings(snapshot, streams, held, chosen)))


def _findings(snapshot: Snapshot, streams: Streams, held: Held, chosen: Chosen) -> Iterator[str]:
    """Say of which streams not every decision was derived again, and why."""
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

"""Compare the messages of the depot with those of the ledger, as multisets over all columns; NULL is a value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.reading.values import records
from windrow.verify.columns import MESSAGE, Ints, kept, numbers, surplus, version_in_id, wide
from windrow.verify.depot import Depot
from windrow.verify.report import EXAMPLES, Difference, differing, unequal
from windrow.verify.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Matched:
    """How often each distinct message is in the depot and in the ledger.

    `messages` has a row for each distinct message, with the first depot version that has it (`version_min`), and the
    first and last row of the ledger that does (`ledger_row_min`, `ledger_row_max`). Accepted messages are numbered
    first, then rejected ones. A message that is twice in the depot and three times in the ledger is ok twice, and
    duplicated once.
    """

    messages: pa.Table
    in_depot: Ints
    in_ledger: Ints

    @property
    def ok(self) -> int:
        """Return how many messages depot and ledger have in common."""
        return int(np.minimum(self.in_depot, self.in_ledger).sum())

    @property
    def lost(self) -> Ints:
        """Return how often each message is missing in the ledger."""
        return np.maximum(self.in_depot - self.in_ledger, 0)

    @property
    def extra(self) -> Ints:
        """Return how often each message is in the ledger beyond the depot."""
        return np.maximum(self.in_ledger - self.in_depot, 0)

    @property
    def duplicated(self) -> Ints:
        """Return how often each message of the depot is in the ledger too often."""
        return np.where(self.in_depot > 0, self.extra, 0)

    @property
    def unexpected(self) -> Ints:
        """Return how often each message is in the ledger that the depot does not have."""
        return np.where(self.in_depot > 0, 0, self.extra)


def match(snapshot: Snapshot, depot: Depot) -> Matched:
    """Count each distinct message on both sides."""
    names = list(MESSAGE)
    read = depot.upto(snapshot.progress.depot_version).select([*names, "version"])
    read = read.append_column("in_depot", pa.repeat(1, read.num_rows))
    held = pa.concat_tables([part.select(names) for part in (snapshot.messages, snapshot.rejected)])
    held = held.append_column("in_ledger", pa.repeat(1, held.num_rows))
    held = held.append_column("ledger_row", pa.array(np.arange(held.num_rows)))
    both = wide(pa.concat_tables([read, held], promote_options="default"))
    wanted = [("in_depot", "sum"), ("in_ledger", "sum")]
    wanted += [("version", "min"), ("ledger_row", "min"), ("ledger_row", "max")]
    counted = both.group_by(names, use_threads=False).aggregate(wanted)
    in_depot, in_ledger = (pc.fill_null(counted[f"{name}_sum"], 0).to_numpy() for name in ("in_depot", "in_ledger"))
    return Matched(counted, in_depot, in_ledger)


def check_messages(snapshot: Snapshot, depot: Depot, matched: Matched) -> Iterator[Difference]:
    """Say whether the books balance, and which messages are lost, duplicated or unexpected.

    Where depot versions can no longer be read, the ledger must hold as many additional messages as the history
    recorded for those versions.
    """
    held = snapshot.messages.num_rows + snapshot.rejections.num_rows
    yield from unequal("balance", snapshot.messages_read, held, "messages in batches and rejections")
    beyond = max(snapshot.progress.depot_version - depot.last, 0) if depot.first <= depot.last else 0
    yield from unequal("depot", 0, beyond, "versions read beyond the depot's latest")
    yield from _located("lost", "in a batch or rejected", matched, matched.lost, snapshot)
    if depot.readable > depot.first:
        # What is duplicated or unexpected cannot be told from the messages of versions that can no longer be read.
        what = "messages of depot versions that can no longer be read"
        yield from unequal("unreadable versions", _unreadable(snapshot, depot), int(matched.extra.sum()), what)
        return
    yield from _located("duplicated", "as often as in the depot", matched, matched.duplicated, snapshot)
    yield from _located("unexpected", "only messages of the depot", matched, matched.unexpected, snapshot)


def _unreadable(snapshot: Snapshot, depot: Depot) -> int:
    """Return how many messages the history recorded for depot versions that can no longer be read."""
    listed = snapshot.versions_read
    version = numbers(listed["version"])
    rows = kept(listed, (version >= depot.first) & (version < depot.readable))
    # A raw depot is read completely or not at all.
    refused = snapshot.raw.rejected.num_rows if snapshot.raw else 0
    return int(pc.sum(rows["messages"]).as_py() or 0) - refused


def check_versions(snapshot: Snapshot, depot: Depot) -> Iterator[Difference]:
    """Check that the history lists every depot version with messages, and how many it has.

    Of a raw depot it lists the versions with chunks; a refused record or chunk counts as a message.
    """
    listed = snapshot.versions_read
    version = numbers(listed["version"])
    gone = (version >= depot.first) & (version < depot.readable)
    readable = kept(listed, ~gone, ["version", "messages"])
    there = depot.counted(snapshot.progress.depot_version).rename_columns(["version", "there"])
    both = there.join(readable, "version", join_type="full outer").sort_by("version")
    wrong = numbers(both["there"]) != numbers(both["messages"])
    rows = kept(both, wrong).rename_columns(["version", "in the depot", "in the history"])
    expected = "each depot version with its messages"
    yield from differing("depot versions", expected, rows, "versions")


def check_rejected_from(snapshot: Snapshot, depot: Depot) -> Iterator[Difference]:
    """Check that the depot version in the id of a rejection has its message."""
    version = version_in_id(snapshot.rejected)
    rejected = snapshot.rejected.select(list(MESSAGE)).append_column("version", version)
    gone = (numbers(version) >= depot.first) & (numbers(version) < depot.readable)
    rows, _ = surplus(kept(rejected, ~gone), depot.upto(snapshot.progress.depot_version))
    expected = "the depot version that the id names"
    yield from differing("rejected from", expected, rows, "messages of another version")


def _located(check: str, expected: str, matched: Matched, counts: Ints, snapshot: Snapshot) -> Iterator[Difference]:
    """Yield the difference for some messages, with examples that say where each one is."""
    rows = np.flatnonzero(counts)
    if not rows.size:
        return
    chosen = pa.array(rows[:EXAMPLES])
    examples = records(
        matched.messages.take(chosen).select([*MESSAGE, "version_min", "ledger_row_min", "ledger_row_max"])
    )
    for example, count in zip(examples, counts[rows[:EXAMPLES]].tolist(), strict=True):
        found = [example.pop(name) for name in ("ledger_row_min", "ledger_row_max")]
        example["times"] = count
        example["depot_version"] = example.pop("version_min")
        example["ledger_rows"] = [_holder(snapshot, row) for row in dict.fromkeys(found) if row is not None]
    yield Difference(check, expected, f"{counts.sum()} messages", examples=tuple(examples))


def _holder(snapshot: Snapshot, ledger_row: int) -> str:
    """Return the id of the batch or rejection that holds a message."""
    accepted = snapshot.messages.num_rows
    if ledger_row >= accepted:
        return str(snapshot.rejected["id"][ledger_row - accepted].as_py())
    return str(snapshot.batches["id"][snapshot.messages["row"][ledger_row].as_py()].as_py())

"""The result of a replay: whether the two tables are equal and, of a batcher, what changed and moved if they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Ticks = Literal["reuse", "fresh", "merged"]  # the recorded ticks or events, none of them, or these and new ones
ChangeKind = Literal["changed", "moved", "removed", "added"]


@dataclass(frozen=True, slots=True)
class ReplayChange:
    """A batch or rejection that differs between the ledgers.

    `changed`: the id is the same, and `columns` has both values of each column that differs. `moved`: a batch
    with the same messages has another id, `new_id`. `added`, `removed`: only one ledger has it. `message_counts`
    are those of the ledger and of the replay.
    """

    kind: ChangeKind
    id: str
    new_id: str | None
    microbatch: int | None
    message_counts: tuple[int, int]
    columns: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Move:
    """Messages that moved from one batch (its id) or rejection reason to another; None: not in that ledger.

    `example` is the earliest of them.
    """

    before: str | None
    after: str | None
    message_count: int
    example: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LedgerDigest:
    """The replayed part of one ledger."""

    digest: str
    microbatch_count: int
    batch_count: int
    rejected_by_reason: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two ledgers: how many batches are the same, and the first changes and moves."""

    unchanged: int
    counts: Mapping[ChangeKind, int]
    moved_message_count: int
    first_microbatch: int | None
    changes: tuple[ReplayChange, ...]
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The common result of a replay of a batcher or topology. `into` locates the new table, None if it was deleted.

    `equal`: both tables have the same content, to the last byte of the canonical form.
    """

    into: str | None
    ticks: Ticks
    equal: bool

    @property
    def expected_equal(self) -> bool:
        """Tell whether any difference is an error: the ticks are the recorded ones."""
        return self.ticks == "reuse"

    @property
    def ok(self) -> bool:
        """Tell whether the result is as expected."""
        return self.equal or not self.expected_equal

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary for JSON."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Amendment:
    """The counts of an amendment: batches that it supersedes, amended batches, and rejected messages let in.

    `microbatch` is the number of the commit, None if there was no difference. `rules` are those of the branch.
    """

    microbatch: int | None
    superseded_batch_count: int
    amended_batch_count: int
    let_in: int
    rules: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Replay(Outcome):
    """The result of a replay of a batcher."""

    depot: str
    ledger: str
    first_depot_version: int
    last_depot_version: int
    message_count: int
    rules: Mapping[str, Any] | None
    keys: tuple[str, ...]
    sources: tuple[str, ...]
    recorded: LedgerDigest
    replayed: LedgerDigest
    comparison: Comparison | None

    @property
    def expected_equal(self) -> bool:
        """Tell whether any difference is an error: rules and ticks are the recorded ones."""
        return self.rules is None and self.ticks == "reuse"

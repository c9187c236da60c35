"""The result of a replay: two digests and, if they differ, the changed batches and the moved messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

What = Literal["changed", "other window", "disappears", "appears"]


@dataclass(frozen=True, slots=True)
class Change:
    """A batch or rejection that differs between the ledgers.

    `changed`: the id is the same, and `columns` has both values of each column that differs. `other window`: a batch
    with the same messages has another id, `becomes`. `appears`, `disappears`: only one ledger has it. `messages` are
    the numbers of its messages in the ledger and in the replay.
    """

    what: What
    id: str
    becomes: str | None
    microbatch: int | None
    messages: tuple[int, int]
    columns: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Move:
    """Messages that moved from one batch (its id) or rejection reason to another; None: not in that ledger.

    `example` is the earliest of them.
    """

    before: str | None
    after: str | None
    messages: int
    example: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """The replayed part of one ledger."""

    digest: str
    microbatches: int
    batches: int
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two ledgers: how many batches are the same, and the first changes and moves."""

    same: int
    counts: Mapping[What, int]
    moved: int
    first_microbatch: int | None
    changes: tuple[Change, ...]
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay. `into` is the new ledger, None if it was deleted."""

    depot: str
    ledger: str
    into: str | None
    first_depot_version: int
    last_depot_version: int
    messages: int
    rules: Mapping[str, Any] | None
    ticks: str
    keys: tuple[str, ...]
    sources: tuple[str, ...]
    recorded: Side
    replayed: Side
    comparison: Comparison | None

    @property
    def equal(self) -> bool:
        """Tell whether both ledgers have the same content, to the last byte of the canonical form."""
        return self.recorded.digest == self.replayed.digest

    @property
    def expected_equal(self) -> bool:
        """Tell whether any difference is an error: rules and ticks are the recorded ones."""
        return self.rules is None and self.ticks == "reuse"

    @property
    def ok(self) -> bool:
        """Tell whether the result is as expected."""
        return self.equal or not self.expected_equal

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary for JSON."""
        return {"ok": self.ok, "equal": self.equal, **asdict(self)}

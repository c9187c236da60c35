"""What a replay gave: two digests, and where they differ the batches that changed and the messages that moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

What = Literal["changed", "other window", "disappears", "appears"]


@dataclass(frozen=True, slots=True)
class Change:
    """A batch or rejection that is not the same in both ledgers.

    `changed`: under the same id, `columns` has both values of what differs. `other window`: a batch of the same
    messages under another id, `becomes`. `appears`, `disappears`: in one ledger only. `messages` is how many
    messages it has in the ledger and in the replay.
    """

    what: What
    id: str
    becomes: str | None
    microbatch: int | None
    messages: tuple[int, int]
    columns: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Move:
    """Messages that are elsewhere: from a batch (its id) or a reason of rejection to another; None: not there.

    `example` is the earliest of them.
    """

    before: str | None
    after: str | None
    messages: int
    example: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the two ledgers holds of what was replayed."""

    digest: str
    microbatches: int
    batches: int
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two ledgers compared: how many batches are the same, and the first of the changes and moves."""

    same: int
    counts: Mapping[What, int]
    moved: int
    first_microbatch: int | None
    changes: tuple[Change, ...]
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay; `expected_equal` when rules and ticks were the recorded ones.

    `into` is the new ledger, None when it was dropped.
    """

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
        """Tell whether both say the same, to the last byte of the canonical form."""
        return self.recorded.digest == self.replayed.digest

    @property
    def expected_equal(self) -> bool:
        """Tell whether anything but equality is an error."""
        return self.rules is None and self.ticks == "reuse"

    @property
    def ok(self) -> bool:
        """Tell whether it is as it must be."""
        return self.equal or not self.expected_equal

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON knows it."""
        return {"ok": self.ok, "equal": self.equal, **asdict(self)}

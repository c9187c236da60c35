"""What a microbatch and what maintenance did: for logs, metrics, observers and whoever called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

Kind = Literal["data", "tick", "flush", "rules", "pause", "resume", "rollback", "option"]
PHASES = ("prime", "plan", "process", "commit")
Role = Literal["ledger", "depot"]
ROLES: tuple[Role, ...] = ("ledger", "depot")


@dataclass(frozen=True, slots=True)
class Committed:
    """A microbatch as it was committed; phases in milliseconds.

    `reasons` has how many were rejected for which reason, `open_batches` is how many are open afterwards, `lag_ms` how
    long before the commit the newest message that it read had arrived (None when none had a stamp that counts). These
    and `commit_ms` are None where it was committed in another process, as the history has none of them.
    """

    microbatch: int
    kind: Kind
    attempt: int
    depot: str | None
    depot_version: int
    messages: int
    accepted: int
    rejected: int
    reasons: Mapping[str, int] | None
    opened: int
    closed: int
    open_batches: int | None
    path: str
    commit_form: str
    lag_ms: float | None
    prime_ms: float
    plan_ms: float
    process_ms: float
    commit_ms: float | None

    def phases(self) -> dict[str, float]:
        """Return how long each phase took in milliseconds, in their order, as far as it is known."""
        took = {name: getattr(self, f"{name}_ms") for name in PHASES}
        return {name: milliseconds for name, milliseconds in took.items() if milliseconds is not None}


def committed_in(history: pa.Table) -> list[Committed]:
    """Return the microbatches of history rows (`tables.HISTORY`), in their order."""
    renamed = history.rename_columns(["messages" if name == "messages_read" else name for name in history.column_names])
    recorded = [name for name in Committed.__dataclass_fields__ if name in renamed.column_names]
    unknown: dict[str, Any] = dict.fromkeys(Committed.__dataclass_fields__.keys() - recorded)
    return [Committed(**unknown, **row) for row in renamed.select(recorded).to_pylist()]


@dataclass(frozen=True, slots=True)
class Maintained:
    """What was done to one table, in a dry run what would be; None where the table does not tell.

    `keep` is the retention that it has now, None for a table that was left alone or only tidied; `keep_changed` tells
    whether it had another one. `compacted_files` became `compacted_into`, `vacuumed_files` are gone; `left_alone` says
    why a table was left.
    """

    table: Role
    location: str
    keep: str | None = None
    keep_changed: bool = False
    compacted_files: int | None = 0
    compacted_into: int | None = 0
    vacuumed_files: int = 0
    left_alone: str | None = None

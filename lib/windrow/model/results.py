"""Results of microbatches and of maintenance, for logs, metrics, observers and callers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

Kind = Literal["data", "tick", "flush", "rules", "pause", "resume", "skip", "rollback", "option", "amend"]
PHASES = ("prime", "plan", "process", "commit")
Role = Literal["ledger", "depot"]
ROLES: tuple[Role, ...] = ("ledger", "depot")


@dataclass(frozen=True, slots=True)
class CommittedMicrobatch:
    """A committed microbatch; phases in milliseconds.

    `depot_version` is how far the depot was read (None in a topology, where `depots` says it by name). `reasons` counts
    the rejected messages by reason, `open_batch_count` the batches that are open afterwards. `lag_ms` is the time from
    the arrival of the newest message to the commit (None without a valid stamp). `lag_ms` and `commit_ms` are None if
    another process committed, because the history does not have them.
    """

    microbatch: int
    kind: Kind
    attempt: int
    depot_version: int | None
    message_count: int
    accepted: int
    rejected: int
    reasons: Mapping[str, int] | None
    opened: int
    closed: int
    open_batch_count: int | None
    processed_on: str
    commit_mode: str
    prime_ms: float
    plan_ms: float
    process_ms: float
    lag_ms: float | None = None
    commit_ms: float | None = None
    depots: Mapping[str, int] = field(default_factory=dict)

    def phases(self) -> dict[str, float]:
        """Return the duration of each known phase in milliseconds, in order."""
        took = {name: getattr(self, f"{name}_ms") for name in PHASES}
        return {name: milliseconds for name, milliseconds in took.items() if milliseconds is not None}

    def history(self) -> dict[str, object]:
        """Return what the history records of the microbatch, by column."""
        return {column: getattr(self, name) for name, column in RECORDED.items()}


RECORDED = {
    name: "messages_read" if name == "message_count" else name
    for name in CommittedMicrobatch.__dataclass_fields__
    if name not in ("reasons", "open_batch_count", "lag_ms", "commit_ms", "depots")
}


def read_committed(history: pa.Table) -> list[CommittedMicrobatch]:
    """Return the microbatches of history rows (`tables.HISTORY`), in their order."""
    unknown: dict[str, Any] = {"reasons": None, "open_batch_count": None}
    return [
        CommittedMicrobatch(**unknown | {name: row.get(column) for name, column in RECORDED.items()})
        for row in history.to_pylist()
    ]


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What maintenance did to one table, or would do in a dry run; None if unknown.

    `retention` is the retention of the table now, None if it was left alone or only tidied; `retention_changed` tells
    whether it was different. `folded_versions` versions of live rows did not count and were dropped, `files_removed`
    files were merged into `files_added`, `files_deleted` were deleted. `skip_reason` says why the table was not
    maintained.
    """

    table: Role
    location: str
    retention: str | None = None
    retention_changed: bool = False
    files_removed: int | None = 0
    files_added: int | None = 0
    files_deleted: int = 0
    skip_reason: str | None = None
    folded_versions: int = 0

"""A depot of a topology: where it is, where reading begins, and how its rows become messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Depot:
    """A Delta table that grows. `location` is a path or catalog name, `start_from` as in `windrow.toml`.

    A table with the columns of a message is read as messages, after `columns` (`[depot.columns]`) have been mapped; a
    raw depot by the `[format]` of the settings. The ledger of a batcher is read as its closed batches. Any other table
    is read as its rows are. A smaller `priority` is read first where several depots are at the same time.
    """

    location: str
    start_from: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0

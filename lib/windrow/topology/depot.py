"""A depot of a topology: its location, where reading begins, and how its rows become messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Depot:
    """An append-only Delta table. `location` is a path or catalog name, `start_from` is as in `windrow.toml`.

    A table with the columns of messages is read as messages, after mapping `columns` (as `[depot.columns]`). A raw
    depot is read by the `[format]` of the settings, the ledger of a batcher as its closed batches, and any other table
    as its own rows. With `state`, a topology's table of states is read as what each of its microbatches changed in this
    state.

    If several depots have reached the same time, the one with the smallest `priority` is read first.
    """

    location: str
    start_from: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    state: str | None = None

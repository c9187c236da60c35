"""The protocol through which a check queries the rows of a ledger version, in Spark or DuckDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

STATES = ("progress", "microbatch", "open", "closed", "rejected")


class Rows(Protocol):
    """One version of a ledger, read once, that answers queries in Spark SQL."""

    @property
    def views(self) -> Mapping[str, str]:
        """Return the SQL of each relation of the invariants, as `windrow.verify.invariants.views` does."""

    def ask(self, statement: str) -> pa.Table:
        """Return the answer to a statement, in which `{batch}` is the ledger."""

    def batch(self, context: Any, name: str) -> tuple[Any, Any]:
        """Return a batch definition of that name in a context of Great Expectations, and its frame."""


def counted(rows: Rows) -> dict[str, int]:
    """Return how many rows of each state there are."""
    found = rows.ask("SELECT state, count(*) AS rows FROM {batch} GROUP BY state").to_pylist()
    return dict.fromkeys(STATES, 0) | {row["state"]: row["rows"] for row in found}

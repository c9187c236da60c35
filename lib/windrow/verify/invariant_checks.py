"""Check the invariants of `windrow check` with DuckDB, over the rows of a ledger version."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from windrow.reading.delta import Ledger
from windrow.verify.invariants import INVARIANTS, counting
from windrow.verify.quality.embedded import held_rows
from windrow.verify.report import Difference, differing

UNCHECKED = "the invariants were not checked: that needs duckdb, pip install 'windrow-delta[embedded]'"
CRITICAL = tuple(one for one in INVARIANTS.values() if one.severity == "critical")


def can_check() -> bool:
    """Tell whether DuckDB is installed."""
    return find_spec("duckdb") is not None


def check_invariants(ledger: Ledger) -> Iterator[Difference]:
    """Check the critical invariants: one pass over each relation counts failures, a query then fetches failing rows."""
    with held_rows(ledger) as rows:
        counts = [rows.ask(statement).to_pylist()[0] for statement in counting(CRITICAL, rows.views)]
        failed = {name for found in counts for name, count in found.items() if count}
        for invariant in CRITICAL:
            if invariant.name in failed:
                found = rows.ask(invariant.statement(rows.views))
                yield from differing(invariant.name, invariant.about, found, "rows")

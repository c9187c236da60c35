"""What always holds in a ledger, as SQL: for GX on Spark or DuckDB, for `verify`, and to paste into an editor.

Each invariant is a condition on the rows of a relation, so that one pass over a relation counts what fails for all of
its invariants. Those that are critical hold whatever is read; the others are about the quality of what was read.
"""

from __future__ import annotations

from windrow.verify.invariants.batches import BATCHES
from windrow.verify.invariants.books import BOOKS
from windrow.verify.invariants.rejections import REJECTIONS
from windrow.verify.invariants.relations import Invariant, counting, for_duckdb, payload_bytes, views

__all__ = ["INVARIANTS", "SUITES", "Invariant", "counting", "for_duckdb", "payload_bytes", "views"]

SUITES = {"closed_batches": BATCHES, "rejected_messages": REJECTIONS, "books": BOOKS}
INVARIANTS = {invariant.name: invariant for suite in SUITES.values() for invariant in suite}

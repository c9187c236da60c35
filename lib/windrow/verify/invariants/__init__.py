"""What always holds in a ledger, as SQL: for GX on Spark or DuckDB, for `verify`, and to paste into an editor.

Each invariant is a condition on the rows of a relation, so that one pass over a relation counts the failures of all its
invariants. Critical invariants hold for any input; the others are about the quality of the input.
"""

from __future__ import annotations

from windrow.verify.invariants.batches import BATCHES
from windrow.verify.invariants.books import BOOKS
from windrow.verify.invariants.rejections import REJECTIONS
from windrow.verify.invariants.relations import Invariant, counting, for_duckdb, payload_bytes, views

__all__ = ["INVARIANTS", "SUITES", "Invariant", "counting", "for_duckdb", "payload_bytes", "views"]

SUITES = {"closed_batches": BATCHES, "rejected_messages": REJECTIONS, "books": BOOKS}
INVARIANTS = {invariant.name: invariant for suite in SUITES.values() for invariant in suite}

"""Data quality: suites of expectations for Great Expectations, and the check of a ledger by them.

The suites are functions that return a fresh `ExpectationSuite` over a ledger's table, for users to extend. All of it
needs the extra `quality`, which is imported where it is used.
"""

from __future__ import annotations

from windrow.verify.quality.checking import check
from windrow.verify.quality.outcome import Checked, Outcome
from windrow.verify.quality.suites import MAX_REJECTED, books, closed_batches, rejected_messages

__all__ = ["MAX_REJECTED", "Checked", "Outcome", "books", "check", "closed_batches", "rejected_messages"]

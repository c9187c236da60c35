"""Data quality: suites for Great Expectations, and `check`, which validates a ledger against them.

Each suite is a function that returns a new `ExpectationSuite` over a ledger's table, for users to extend. The extra
`quality` is needed, and imported on first use.
"""

from __future__ import annotations

from windrow.verify.quality.checking import Outcome, QualityResult, check
from windrow.verify.quality.suites import MAX_REJECTED, books, closed_batches, rejected_messages

__all__ = ["MAX_REJECTED", "Outcome", "QualityResult", "books", "check", "closed_batches", "rejected_messages"]

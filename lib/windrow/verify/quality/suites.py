"""The suites: closed batches, rejected messages, and the books. Each is validated against the whole ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windrow.verify.invariants import SUITES
from windrow.verify.quality.library import library

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from great_expectations.expectations.expectation import Expectation

MAX_REJECTED = 0.05
REJECTED_SHARE = """
SELECT rejected, messages_read, rejected / messages_read AS share
FROM (
  SELECT sum(rejected) AS rejected, sum(messages_read) AS messages_read FROM {{batch}} WHERE state = 'microbatch'
)
WHERE rejected > {share!r} * messages_read
"""


def closed_batches(*own: Expectation) -> ExpectationSuite:
    """Return the suite for batches, open and closed, with your `own` expectations added."""
    return _suite("closed_batches", own)


def rejected_messages(*own: Expectation, max_rejected: float = MAX_REJECTED) -> ExpectationSuite:
    """Return the suite for rejected messages; it warns when more than the share `max_rejected` of all is rejected."""
    library()
    from great_expectations.expectations.metadata_types import FailureSeverity

    from windrow.verify.quality.expectation import ExpectNoRow

    share = ExpectNoRow(
        unexpected_rows_query=REJECTED_SHARE.format(share=float(max_rejected)).strip(),
        severity=FailureSeverity.WARNING,
        description=f"The share of rejected messages among those read is at most max_rejected ({max_rejected:g}).",
        meta={"name": "rejected_share"},
    )
    return _suite("rejected_messages", (share, *own))


def books(*own: Expectation) -> ExpectationSuite:
    """Return the suite for progress and history, and how they agree with batches and rejected messages."""
    return _suite("books", own)


def _suite(name: str, own: Sequence[Expectation]) -> ExpectationSuite:
    gx = library()
    from windrow.verify.quality.expectation import expectation

    return gx.ExpectationSuite(name=name, expectations=[*map(expectation, SUITES[name]), *own])

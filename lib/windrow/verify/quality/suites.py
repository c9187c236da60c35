"""The suites: closed batches, rejected messages, and the books. Each is validated against the whole ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windrow.model.warn import MAX_TOO_OLD_RATIO, MIN_COUNT, SLIVER_SHARE, SPLIT_SHARE
from windrow.model.warn import REJECTED_SHARE as WRONG_SHARE
from windrow.reading.warnings import DELAY, SHARED, SLIVERS, SOURCES, SPLITS, statement
from windrow.verify.invariants import SUITES
from windrow.verify.quality.great_expectations import library

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


def closed_batches(*own: Expectation, min_count: int = MIN_COUNT) -> ExpectationSuite:
    """Return the suite for batches, open and closed, with your `own` expectations.

    Fewer than `min_count` batches or messages never trigger a warning.
    """
    splits = _no_row(
        "ledger_splits",
        statement(SPLITS, min_count),
        f"At most {SPLIT_SHARE:g} of all batches were opened because a type came again.",
    )
    slivers = _no_row(
        "ledger_slivers",
        statement(SLIVERS, min_count),
        f"At most {SLIVER_SHARE:g} of the closed batches have few messages for their stream.",
    )
    return _suite("closed_batches", (splits, slivers, *own))


def rejected_messages(
    *own: Expectation, max_rejected: float = MAX_REJECTED, min_count: int = MIN_COUNT
) -> ExpectationSuite:
    """Return the suite for rejected messages, with your `own` expectations.

    It warns when the share of rejected messages exceeds `max_rejected`. Fewer than `min_count` batches or
    messages never trigger a warning.
    """
    share = _no_row(
        "rejected_share",
        REJECTED_SHARE.format(share=float(max_rejected)).strip(),
        f"The share of rejected messages among those read is at most max_rejected ({max_rejected:g}).",
    )
    shared = _no_row(
        "clock_shared",
        statement(SHARED, min_count),
        f"At most {MAX_TOO_OLD_RATIO:g} of a source's messages are too old because of the clocks of other keys.",
    )
    sources = _no_row(
        "ledger_sources",
        statement(SOURCES, min_count),
        f"At most {WRONG_SHARE:g} of a source's messages are too old or too far ahead.",
    )
    delay = _no_row(
        "ledger_delay",
        statement(DELAY, min_count),
        f"At most {MAX_TOO_OLD_RATIO:g} of the other sources' messages are too old.",
    )
    return _suite("rejected_messages", (share, shared, sources, delay, *own))


def _no_row(name: str, query: str, about: str) -> Expectation:
    """Return an expectation that warns of the rows that a query selects."""
    library()
    from great_expectations.expectations.metadata_types import FailureSeverity

    from windrow.verify.quality.expectation import ExpectNoRow

    return ExpectNoRow(
        unexpected_rows_query=query, severity=FailureSeverity.WARNING, description=about, meta={"name": name}
    )


def books(*own: Expectation) -> ExpectationSuite:
    """Return the suite for progress and history, and how they agree with batches and rejected messages."""
    return _suite("books", own)


def _suite(name: str, own: Sequence[Expectation]) -> ExpectationSuite:
    gx = library()
    from windrow.verify.quality.expectation import expectation

    return gx.ExpectationSuite(name=name, expectations=[*map(expectation, SUITES[name]), *own])

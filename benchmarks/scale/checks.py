"""What is required of a ledger at the end of a scenario: says what it finds, and raises if anything is amiss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

import windrow
from benchmarks.scale.accounts import accounts
from benchmarks.scale.sampled import sampled
from benchmarks.scale.telling import say
from windrow.verify import verify

MAX_VERIFIED = 6_000_000  # messages that `verify` checks in a minute or two


class CheckFailed(RuntimeError):
    """A ledger that is not what its depot makes it."""


def require_balance(spark: SparkSession, depot: Path, ledger: Path) -> None:
    """Require that each message is in one batch or rejection, by Spark SQL."""
    books = accounts(spark, depot, ledger)
    say(
        f"books: {books.messages:,} messages, {books.lost:,} lost, {books.twice:,} twice, "
        f"{books.unexpected:,} unexpected, {books.different:,} different"
    )
    _require(books.balanced, "the books do not balance")


def require_sample(
    spark: SparkSession, depot: Path, ledger: Path, sources: Sequence[str], rules: windrow.Rules
) -> None:
    """Require that all streams of some sources are as `windrow.batch` makes them."""
    sample = sampled(spark, depot, ledger, sources, rules)
    say(f"sample: {sample.streams:,} streams, {sample.rows:,} batches and rejections, {sample.different:,} different")
    _require(sample.rows > 0 and not sample.different, "streams are not as they should be")


def require_verified(depot: Path, ledger: Path, messages: int) -> None:
    """Require that `verify` finds no difference, where it does not take long."""
    if messages > MAX_VERIFIED:
        say(f"verify: not run, {messages:,} messages are more than {MAX_VERIFIED:,}")
        return
    report = verify(str(depot), str(ledger))
    say(f"verify: {len(report.differences)} differences, {len(report.findings)} findings")
    for difference in report.differences:
        say(f"  {difference.check}: expected {difference.expected}, found {difference.found}")
    _require(report.ok, "verify finds differences")


def require_way(ways: set[str], expected: str) -> None:
    """Require that all microbatches with messages were processed where they should be."""
    say(f"ways: {', '.join(sorted(ways))}")
    _require(ways == {expected}, f"not all went the way of {expected}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailed(otherwise)

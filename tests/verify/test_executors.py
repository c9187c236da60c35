"""Spark's executors find what the embedded engine finds, with Spark reading both tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.engine.world import World
from tests.verify.damages import DAMAGES
from tests.verify.quality.damages import Rows, damage
from tests.verify.test_parts import BESIDE, findings_of
from windrow.cli.spark_reader import reading_by_spark
from windrow.settings.settings import Settings
from windrow.verify import NOT_ON_DISK, Report, executors, verify

BY_LOG = ("notes", "by hand", "progress row", "final rows")
SMALL = 150_000  # bytes of memory: enough for the longest stream, and parts have a few streams each
TOGETHER = ("message moved", "parts", "off by", "detail", "ahead", "payloads", "twice")


def by_spark(world: World, versions: Sequence[int] | None = None, **limits: Any) -> Report:
    """Verify as `--engine spark` does."""
    settings = Settings.model_validate({"depot": world.depot, "ledger": world.ledger, "engine": "spark"})
    with reading_by_spark(settings, "books"):
        return verify(world.depot, world.ledger, versions, **limits)


def without_logs(report: Report) -> tuple[Any, ...]:
    """Return what a report says but for what only files and logs tell."""
    differences = [difference for difference in report.differences if not difference.check.startswith(BY_LOG)]
    findings = [finding for finding in report.findings if finding != NOT_ON_DISK]
    return findings_of(replace(report, differences=tuple(differences), findings=tuple(findings)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DAMAGES, *BESIDE])
def test_what_the_embedded_engine_finds(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each planted fault is found, and said of as many rows, by several tasks with several parts each."""
    damage(world, BESIDE[name] if name in BESIDE else DAMAGES[name][0])
    expected = verify(world.depot, world.ledger, max_memory_bytes=SMALL)
    monkeypatch.setattr(executors, "MESSAGES_OF_A_PARTITION", 100)
    report = by_spark(world, max_memory_bytes=SMALL)
    assert without_logs(report) == without_logs(expected)
    assert NOT_ON_DISK in report.findings


def together(rows: Rows) -> Rows:
    """Damage a ledger in many ways at once."""
    for name in TOGETHER:
        change = BESIDE[name] if name in BESIDE else DAMAGES[name][0]
        rows = change(rows) or rows
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True], ids=["one version", "and the one before"])
def test_many_faults(spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """Faults of many kinds are found at once by tasks with several parts each, and of the version before none."""
    versions = [world.version()] if before else []
    damage(world, together)
    versions.append(world.version())
    expected = verify(world.depot, world.ledger, versions, max_memory_bytes=SMALL)
    checks = {difference.check for difference in expected.differences}
    assert {"lost", "clock_ahead", "decisions", "windows by the rules", "messages by the rules"} <= checks
    monkeypatch.setattr(executors, "MESSAGES_OF_A_PARTITION", 100)
    report = by_spark(world, versions, max_memory_bytes=SMALL)
    assert without_logs(report) == without_logs(expected)
    if before:
        assert report.books[0].matched == report.books[0].messages_read == report.books[0].redecided == 303


@pytest.mark.ci
def test_some_streams(spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same streams are derived as on the embedded engine, and no rows of messages or batches come to the driver."""
    rows, frames = 0, type(spark.range(1))
    to_arrow = frames.toArrow

    def counting(frame: DataFrame) -> pa.Table:
        nonlocal rows
        answer = to_arrow(frame)
        rows += answer.num_rows
        return answer

    expected = verify(world.depot, world.ledger, max_messages=100)
    monkeypatch.setattr(frames, "toArrow", counting)
    report = by_spark(world, max_messages=100)
    assert report.ok
    assert without_logs(report) == without_logs(expected)
    assert 0 < report.books[0].derived_stream_count < report.books[0].stream_count
    assert 0 < rows < report.books[0].messages_read

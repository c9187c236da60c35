"""The scenarios take too long for tests; what they are made of does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

import windrow
from benchmarks.scale import __main__, soak
from benchmarks.scale.accounts import accounts
from benchmarks.scale.checks import CheckFailed
from benchmarks.scale.generated import GATEWAYS, Fleet, publish, wide
from benchmarks.scale.memory import MIB, Heap, forget_peak, resident
from benchmarks.scale.sampled import sampled

FLEET = Fleet(messages=6_000, versions=2)


@pytest.fixture(scope="module")
def batched(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return depot and ledger of a small fleet, batched without Spark."""
    directory = tmp_path_factory.mktemp("fleet")
    depot, ledger = directory / "depot", directory / "ledger"
    for version in range(FLEET.versions):
        publish(FLEET.version(spark, version), depot)
    windrow.run(settings(depot, ledger))
    return depot, ledger


def settings(depot: Path, ledger: Path) -> windrow.Settings:
    return windrow.Settings(
        depot=str(depot), ledger=str(ledger), engine="embedded", idle_timeout="never", max_messages=1
    )


@pytest.mark.slow
class TestGenerated:
    def test_versions_have_everything_once(self, spark: Any, batched: tuple[Path, Path]) -> None:
        """What is measured arrives once, or twice where it is sent again, each with a sequence of its own."""
        messages = spark.read.format("delta").load(str(batched[0]))
        assert messages.where("sequence % 2 = 0").count() == FLEET.messages
        assert messages.count() == messages.select("sequence").distinct().count() > FLEET.messages
        assert {row[0] for row in messages.select("source").distinct().collect()} == set(FLEET.sources)

    def test_versions_follow(self, spark: Any) -> None:
        """Nothing of a later version arrived before something of an earlier one."""
        first, second = (FLEET.version(spark, version).select("received_at") for version in range(2))
        assert first.agg(F.max("received_at")).collect() < second.agg(F.min("received_at")).collect()

    def test_some_are_late(self, batched: tuple[Path, Path]) -> None:
        """Some messages come too late for the rules, and are rejected."""
        assert DeltaTable(batched[1]).to_pyarrow_table(filters=[("state", "=", "rejected")]).num_rows > 0

    def test_wide(self, spark: Any) -> None:
        """Each key has one message, or one key in so many has."""
        assert wide(spark, 2_000, 0).select("key").distinct().count() == 2_000
        assert wide(spark, 2_000, 0).select("source").distinct().count() == GATEWAYS
        assert 0 < wide(spark, 2_000, 1, 10).count() < 1_000


@pytest.mark.slow
class TestChecks:
    def test_balance(self, spark: Any, batched: tuple[Path, Path]) -> None:
        """The books of an undisturbed ledger balance."""
        books = accounts(spark, *batched)
        assert books.balanced
        assert books.messages > FLEET.messages

    @pytest.mark.parametrize(("number", "amiss"), [(10, "lost"), (0, "balanced")])
    def test_lost(self, spark: Any, batched: tuple[Path, Path], tmp_path: Path, number: int, amiss: str) -> None:
        """Messages of the depot that the ledger has not are lost, each of them."""
        depot = tmp_path / "depot"
        whole = spark.read.format("delta").load(str(batched[0]))
        publish(whole.unionByName(whole.limit(number).withColumn("sequence", -F.col("sequence") - 1)), depot)
        books = accounts(spark, depot, batched[1])
        assert (books.lost, books.balanced) == (number, amiss == "balanced")

    def test_twice_unexpected_different(self, spark: Any, batched: tuple[Path, Path], tmp_path: Path) -> None:
        """Messages that stand twice, that nobody sent, and that are not as they were sent are told apart."""
        whole = spark.read.format("delta").load(str(batched[0])).where("sequence NOT IN (2, 4)")
        changed = F.when(F.col("sequence") == 6, "other").otherwise(F.col("payload"))
        publish(whole.withColumn("payload", changed), tmp_path / "depot")
        ledger = spark.read.format("delta").load(str(batched[1]))
        again = ledger.where("exists(messages, m -> m.sequence = 8)").withColumn("id", F.lit("again"))
        kept = again.withColumn("messages", F.expr("filter(messages, m -> m.sequence = 8)"))
        ledger.unionByName(kept).write.format("delta").save(str(tmp_path / "ledger"))
        books = accounts(spark, tmp_path / "depot", tmp_path / "ledger")
        assert (books.lost, books.twice, books.unexpected, books.different) == (0, 1, 2, 1)

    def test_sample(self, spark: Any, batched: tuple[Path, Path]) -> None:
        """Streams are what `windrow.batch` makes of them by the same rules, and not by others."""
        some = FLEET.sources[:3]
        sample = sampled(spark, *batched, some, windrow.Rules())
        assert (sample.streams > 0, sample.rows > 0, sample.different) == (True, True, 0)
        assert sampled(spark, *batched, some, windrow.Rules(window="7s")).different > 0


class TestMemory:
    def test_python(self) -> None:
        """A peak is remembered until it is to be forgotten."""
        forget_peak()
        before = resident("VmHWM")
        memory = bytearray(100_000_000)
        assert resident("VmHWM") - before >= len(memory) // 2
        del memory
        assert resident("VmHWM") > before
        forget_peak()
        assert resident("VmHWM") < before + 50_000_000

    @pytest.mark.slow
    def test_java(self, spark: Any) -> None:
        """The heap of the JVM is used, and never more than it may be."""
        heap = Heap(spark)
        heap.forget_peak()
        assert 0 < heap.held() <= heap.most
        assert 0 < heap.peak() <= heap.most


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """There is help for each scenario."""
    for name in __main__.SCENARIOS:
        with pytest.raises(SystemExit):
            __main__.main([name, "--help"])
        assert "--directory" in capsys.readouterr().out


class TestSoak:
    def test_minutes(self, tmp_path: Path) -> None:
        """What a minute of rounds took is written to a file, read again, and drawn for each engine."""
        clock = soak.SoakClock(tmp_path, 2, None)
        clock.rounds = [(10.0, 0.5, 3 * MIB, 0), (59.0, 1.5, 5 * MIB, 0), (61.0, 2.0, 4 * MIB, 2 * MIB)]
        minutes = [*clock.by_minute("embedded", 1, "abc"), *clock.by_minute("spark", 2, "abd")]
        assert [minute.microbatches for minute in minutes] == [2, 1, 2, 1]
        assert (minutes[0].median_seconds, minutes[0].max_seconds, minutes[0].python_mib) == (1.0, 1.5, 5)
        soak.write(minutes, tmp_path / "soak.csv")
        assert soak.read(tmp_path / "soak.csv") == minutes
        soak.draw(minutes, tmp_path / "soak.png")
        assert (tmp_path / "soak.png").stat().st_size > 10_000

    def test_growth(self) -> None:
        """A session whose end takes more time or memory than its beginning fails."""
        steady = [soak.Minute("embedded", 1, "abc", minute, 100, 0.5, 0.9, 800, 0) for minute in range(20)]
        soak.judge(steady)
        with pytest.raises(CheckFailed):
            soak.judge([*steady[:-2], *(replace(minute, python_mib=1_200) for minute in steady[-2:])])

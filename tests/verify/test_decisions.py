"""The decisions derived from the log and the rules are those in the ledger; any that differs is found."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, message
from tests.verify.conftest import BY_DECISIONS, BY_LOG, LATER
from tests.verify.damages import DAMAGES, misname
from tests.verify.quality.damages import damage, dropping, setting
from tests.verify.worlds import random_world
from windrow.batching.rules import ShortWindowWarning
from windrow.verify import Report, verify
from windrow.verify.decisions import windows
from windrow.verify.report import VerifyProgress


def check(world: World) -> Report:
    """Verify the latest version."""
    return verify(world.depot, world.ledger)


class TestClean:
    @pytest.mark.slow
    def test_every_version(self, world: World) -> None:
        """At every version of a ledger as it was written, every decision and every batch is what the rules make of
        it.
        """
        report = verify(world.depot, world.ledger, range(world.version() + 1))
        assert (report.differences, report.findings) == ((), ())
        for books in report.books:
            assert books.redecided == books.messages_read
            assert books.derived_stream_count == books.stream_count
        assert {"data", "tick", "rules", "flush"} == set(world.kinds())
        reasons = {row["reason"] for row in world.rows("rejected")}
        assert reasons == {"too_old", "too_far_ahead", "duplicate", "invalid", "clock_ahead"}
        batches = world.rows("closed", "open")
        assert {row["open_reason"] for row in batches} == {"message", "conflict", "size"}
        assert {row["close_reason"] for row in batches} == {"timeout", "flush", None}
        assert {row["part"] for row in batches} == {0, 1}


class TestRandom:
    @settings(max_examples=2)
    @given(seed=st.integers(0, 1_000_000))
    def test_clean(self, seed: int) -> None:
        """Nothing is wrong with a ledger after any data, ticks, flushes and rules, cut into any microbatches."""
        assert_clean(seed)

    @pytest.mark.slow
    @settings(max_examples=100)
    @given(seed=st.integers(0, 1_000_000))
    def test_many(self, seed: int) -> None:
        """The same for many of them."""
        assert_clean(seed)


def assert_clean(seed: int) -> None:
    """Verify a random ledger, at its latest version and at an earlier one."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as root:
        warnings.simplefilter("ignore", ShortWindowWarning)
        world = random_world(seed, Path(root))
        report = verify(world.depot, world.ledger, {world.version(), seed % (world.version() + 1)})
        assert (report.differences, report.findings) == ((), ())
        assert report.books[-1].derived_stream_count == report.books[-1].stream_count


@pytest.mark.ci
class TestBounded:
    def test_most(self, world: World) -> None:
        """Within a bound the smallest streams are derived again, the report says how many are left, and what is wrong
        with those is not found.
        """
        messages = Counter()
        for row in world.rows("closed", "open"):
            messages[row["source"], row["key"]] += row["message_count"]
        *small, large = sorted(messages.values())
        damage(world, misname(messages.most_common(1)[0][0]))
        report = verify(world.depot, world.ledger, max_messages=sum(small) + large - 1)
        assert (report.ok, report.complete) == (True, False)
        books, (finding,) = report.books[0], report.findings
        assert (books.derived_stream_count, books.stream_count) == (len(small), len(messages))
        assert f"the windows of 1 of {len(messages)} streams" in finding
        assert f"with {large} messages together" in finding
        assert failed_checks(verify(world.depot, world.ledger, max_messages=None)) == {"windows by the rules"}
        assert books.redecided == books.messages_read

    def test_progress(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Long work tells how many messages are done, stream by stream, and which streams are proven."""
        monkeypatch.setattr(windows, "CHUNK", 1)
        steps: list[VerifyProgress] = []
        report = verify(world.depot, world.ledger, progress=steps.append)
        assert (steps[0], report.ok) == (VerifyProgress(), True)
        start, *steps_between, last = steps[1:]
        books, version = report.books[0], world.version()
        accepted = books.in_open_batches + books.in_closed_batches
        assert start == VerifyProgress(version, 0, 1, 0, books.stream_count, 0, accepted, 0)
        assert len(steps_between) == books.stream_count
        assert steps_between[-1] == replace(start, derived_message_count=accepted)
        assert last == VerifyProgress(version, 1, 1, books.stream_count, books.stream_count, accepted, accepted, 0)

    def test_forgotten(self, world: World, embedded: EngineFactory) -> None:
        """When the beginning of the depot is gone, streams that began later are derived again, from the floors that
        were recorded; the report says how many others there are.
        """
        DeltaTable(world.depot).optimize.compact()
        DeltaTable(world.depot).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        late = [message(kind, NOW + at * SECOND, NOW + at * SECOND, key="new") for at in (60, 61) for kind in "ab"]
        old = [message("a", NOW + 50 * SECOND, NOW + 61 * SECOND)]
        world.publish(late, old)
        world.runner(embedded, rules=LATER).once()
        report = check(world)
        assert (report.ok, report.books[0].redecided, report.books[0].derived_stream_count) == (True, 4, 1)
        assert report.findings[1].startswith("the decisions on 9 of 10 streams")
        damage(world, setting("open", lambda row: row["key"] == "new", open_reason="size"))
        assert failed_checks(check(world)) == {"windows by the rules"}

    def test_damaged_history(self, world: World) -> None:
        """Nothing is derived from a history with a gap, and the report says so."""
        damage(world, dropping("microbatch"))
        report = check(world)
        assert (report.books[0].redecided, report.books[0].derived_stream_count) == (0, 0)
        assert f"the decisions in ledger version {world.version()}, whose history is not whole" in report.findings
        assert failed_checks(report) & BY_DECISIONS == set()


def failed_checks(report: Report) -> set[str]:
    """Return the names of the checks that found a difference, but for those by the log."""
    return {difference.check for difference in report.differences} - BY_LOG


@pytest.mark.ci
class TestDamaged:
    @pytest.mark.parametrize("name", DAMAGES)
    def test_found(self, world: World, name: str) -> None:
        """A ledger that agrees with itself and with the depot, but not with the rules, is found, and by nothing
        else.
        """
        change, checks = DAMAGES[name]
        damage(world, change)
        report = check(world)
        assert failed_checks(report) - BY_DECISIONS == set()
        assert failed_checks(report) >= checks
        assert all(difference.examples for difference in report.differences)
        json.dumps(report.to_dict())

    def test_out_of_range(self, world: World) -> None:
        """A number with which nothing can be computed is a difference too, and the other checks go on."""
        damage(world, setting("rejected", reason="clock_ahead", missed_by_us=-(1 << 63)))
        report = check(world)
        assert {"decisions", "rejected_off_by"} <= failed_checks(report)
        [derived] = [difference for difference in report.differences if difference.check == "decisions"]
        assert "Out of Range" in derived.found

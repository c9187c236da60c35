"""`quality.check` with and without Spark: what it finds, what it says of empty ledgers, and what does not run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.clocks import NOW, ManualClock
from tests.docs.reference import HOME, generate
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, message
from tests.verify.quality.damages import DAMAGES, damage, dropping
from windrow.errors import (
    EngineUnavailableError,
    ExpectationBrokenError,
    IncompatibleTableError,
    OutputFileError,
    TableMissingError,
    TableUnreadableError,
)
from windrow.reading.tables import open_ledger
from windrow.reading.warnings import SHARES, warnings_of
from windrow.verify import quality, verify
from windrow.verify.invariants import INVARIANTS, SUITES
from windrow.verify.quality import QualityResult
from windrow.verify.quality import embedded as embedded_rows
from windrow.verify.quality.great_expectations import library

PAGE = (Path(__file__).parents[3] / "docs" / "quality.md").read_text(encoding="utf-8")
WARNINGS = ("ledger_splits", "ledger_slivers", "rejected_share", "clock_shared", "ledger_sources", "ledger_delay")
MIN_COUNT = 10
GHOST = {"id": "ghost", "state": "ghost"}
# Damages that one ledger can have together: every relation of the invariants fails.
TOGETHER = (
    "closed_batches_there",
    "books_balance",
    "batch_timeout",
    "batch_windows_apart",
    "batch_messages_inside",
    "batch_messages_sorted",
    "type_once_in_window",
    "batch_message_count",
    "batch_closed_filled",
    "message_once",
    "format_reason",
    "rejected_duplicate",
    "rejected_reason",
    "microbatch_numbers",
    "version_once",
    "microbatch_closed",
    "source_clock",
    "id_once",
)


def assert_alike(left: QualityResult, right: QualityResult) -> None:
    """Two checks of one ledger say the same of it; of many failing rows each may show others."""
    assert len(left.outcomes) == len(right.outcomes)
    for outcome, counterpart in zip(left.outcomes, right.outcomes, strict=True):
        shown = sorted(map(json.dumps, outcome.rows)), sorted(map(json.dumps, counterpart.rows))
        assert len(shown[0]) == len(shown[1]), outcome.name
        assert (outcome.failed_count or 0) > len(outcome.rows) or shown[0] == shown[1], outcome.name
        assert replace(outcome, rows=()) == replace(counterpart, rows=())
    assert replace(left, outcomes=()) == replace(right, outcomes=())


def look(session: Any, world: World, *names: str) -> QualityResult:
    """Check a ledger by some of the expectations."""
    gx = library()
    from windrow.verify.quality.expectation import expectation

    chosen = [expectation(INVARIANTS[name]) for name in names]
    return quality.check(session, world.ledger, suites=[gx.ExpectationSuite(name="some", expectations=chosen)])


class TestClean:
    @pytest.mark.slow_on_spark
    def test_everything_critical_holds(self, world: World, session: Any, tmp_path: Path) -> None:
        """A ledger as it was written passes all suites, warnings do not change that, Data Docs have a page for each
        suite, and the result is JSON that names every expectation.
        """
        steps: list[tuple[str, int, int]] = []
        checked = quality.check(
            session, world.ledger, docs=tmp_path / "docs", progress=lambda *step: steps.append(step)
        )
        failures = [failure.name for failure in checked.failures("info")]
        assert failures == ["rejected_clock_ahead", "rejected_not_invalid", "rejected_share"]  # fewer than min_count
        assert (checked.ok, checked.empty_states, checked.ledger_version) == (True, (), world.version())
        assert [outcome.name for outcome in checked.outcomes if outcome.name not in WARNINGS] == list(INVARIANTS)
        assert [what for what, _, _ in steps] == ["rows", *SUITES]
        assert checked.docs == str(tmp_path / "docs" / "index.html")
        pages = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "docs").rglob("*.html"))
        assert all(INVARIANTS[name].about in pages for name in ("books_balance", "message_once", "rejected_id"))
        document = json.loads(json.dumps(checked.to_dict()))
        assert (document["ok"], document["failed_by_severity"]["critical"], document["row_counts"]["closed"]) == (
            True,
            0,
            40,
        )
        (ahead,) = [outcome for outcome in document["outcomes"] if outcome["name"] == "rejected_clock_ahead"]
        assert (ahead["passed"], ahead["failed_count"], ahead["rows"][0]["reason"]) == (False, 5, "clock_ahead")


class TestWarnings:
    @pytest.mark.slow_unless({"session": "embedded"})
    def test_what_status_says(
        self,
        tmp_path: Path,
        clock: ManualClock,
        embedded: EngineFactory,
        session: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """What `status` warns of fails as a warning, by the same limits and with the same counts; what it is quiet
        about holds.
        """
        world = World(tmp_path, clock)
        second = [NOW + at * SECOND for at in range(40)]
        world.publish([message("a", at, at, source="split") for at in second])
        world.publish([message("a", at - 3600 * SECOND, at, source="wrong") for at in second])
        world.publish(
            [message("b", second[0] + at, second[0] + at + (at % 2) * 9 * SECOND, source="b") for at in range(19)]
        )
        bursts = [(NOW + (burst - 40) * 30 * SECOND, 9 if burst % 3 else 1) for burst in range(40)]
        for at, types in bursts:
            world.publish([message(f"t{kind}", at, at, source="bursts") for kind in range(types)])
        world.runner(embedded).once()
        monkeypatch.setitem(SHARES, "split_share", 0.2)
        monkeypatch.setitem(SHARES, "sliver_share", 0.1)
        min_count = 10
        messages = {
            warning.code.replace("-", "_"): warning.message
            for warning in warnings_of(open_ledger(world.ledger), min_count)
        }
        checked = quality.check(session, world.ledger, min_count=min_count)
        failures = {
            failure.name: failure for failure in checked.failures("warning") if failure.name.startswith("ledger")
        }
        assert messages.keys() == failures.keys() == {name for name in WARNINGS if name.startswith("ledger")}
        for name, outcome in failures.items():
            (row,) = outcome.rows
            assert all(f"{value:,}" in messages[name] for value in row.values() if isinstance(value, int)), name
        quiet = quality.check(session, world.ledger, min_count=10_000)
        assert [failure.name for failure in quiet.failures("warning")] == ["rejected_share"]
        kept = World(tmp_path / "kept", clock)
        kept.publish([message("a", at, at) for at in second])
        kept.runner(embedded, rules={"on_repeat": "keep"}).once()
        assert not quality.check(session, kept.ledger, min_count=MIN_COUNT).failures("warning")


class TestDamaged:
    @pytest.mark.slow
    def test_all_at_once(self, world: World, spark: Any) -> None:
        """Check and verify find every one of these damages and as many rows of each, and check shows some of the rows.
        Without Spark, check says the same and shows the same rows.
        """
        for name in TOGETHER:
            damage(world, dropping("closed") if name == "closed_batches_there" else DAMAGES[name])
        checked, report = quality.check(spark, world.ledger), verify(world.depot, world.ledger)
        by_spark = {failure.name: f"{failure.failed_count} rows" for failure in checked.failures()}
        by_duckdb = {
            difference.check: difference.found for difference in report.differences if difference.check in INVARIANTS
        }
        assert set(TOGETHER) <= by_spark.keys()
        assert by_spark == by_duckdb
        assert all(failure.failed_count and failure.rows for failure in checked.failures() if failure.name in TOGETHER)
        assert_alike(checked, quality.check(None, world.ledger))

    @pytest.mark.slow
    def test_all_at_once_uncached(self, world: World, spark: Any, uncached: None) -> None:
        """A Spark that keeps no rows on its executors says the same as none."""
        for name in TOGETHER:
            damage(world, dropping("closed") if name == "closed_batches_there" else DAMAGES[name])
        assert_alike(quality.check(spark, world.ledger), quality.check(None, world.ledger))


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_found_by_the_suites(world: World, spark: Any, request: pytest.FixtureRequest, name: str) -> None:
    """Every damage is found by the suites as they are, with Spark, with one that keeps no rows, and without alike."""
    damage(world, DAMAGES[name])
    checked = quality.check(spark, world.ledger)
    assert name in {failure.name for failure in checked.failures()}
    embedded = quality.check(None, world.ledger)
    assert_alike(checked, embedded)
    request.getfixturevalue("uncached")
    assert_alike(quality.check(spark, world.ledger), embedded)


class TestEmpty:
    @pytest.mark.slow_on_spark
    def test_new(self, world: World, session: Any, tmp_path: Path, clock: Any, embedded: EngineFactory) -> None:
        """A ledger that has read nothing holds, and the result says what was empty."""
        new = World(tmp_path / "new", clock)
        new.runner(embedded)
        checked = look(session, new, "one_progress_row", "closed_batches_there")
        assert (checked.ok, checked.empty_states) == (True, ("microbatch", "open", "closed", "rejected"))

    @pytest.mark.slow_on_spark
    def test_nothing_left(self, world: World, session: Any) -> None:
        """A ledger without a row fails, where an expectation over no rows would hold."""
        damage(world, lambda rows: [GHOST])
        assert "one_progress_row" in {failure.name for failure in look(session, world, "one_progress_row").failures()}


class TestRefused:
    @pytest.mark.ci
    def test_an_expectation_that_does_not_run(self, world: World, session: Any) -> None:
        """An expectation whose query does not run is an error that names it, not a check that failed."""
        broken = library().expectations.UnexpectedRowsExpectation(
            unexpected_rows_query="SELECT nothing_like_it FROM {batch}", meta={"name": "mine"}
        )
        suite = library().ExpectationSuite(name="own", expectations=[broken])
        with pytest.raises(ExpectationBrokenError, match=r"mine of own did not run: .*nothing_like_it"):
            quality.check(session, world.ledger, suites=[suite])

    def test_other_tables(self, world: World, session: Any, tmp_path: Path) -> None:
        """A table that is missing or no ledger is refused, and so is a file in the place of the docs."""
        with pytest.raises(TableMissingError, match="no ledger at"):
            quality.check(session, str(tmp_path / "nowhere"))
        with pytest.raises(IncompatibleTableError, match="not a ledger"):
            quality.check(session, world.depot)
        (tmp_path / "file").touch()
        with pytest.raises(OutputFileError, match="is a file"):
            quality.check(session, world.ledger, docs=tmp_path / "file")


class TestWithoutSpark:
    def test_an_expectation_of_ones_own(self, world: World) -> None:
        """An expectation that is no query is refused, because it speaks to Spark."""
        suite = quality.books(library().expectations.ExpectTableRowCountToBeBetween(min_value=1, meta={"name": "mine"}))
        with pytest.raises(EngineUnavailableError, match="mine of books needs Spark"):
            quality.check(None, world.ledger, suites=[suite])

    def test_reads_no_messages_in_vain(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Messages are read only for expectations that are about them."""
        monkeypatch.setattr(embedded_rows, "CONTENTS", "no statement")
        own = library().expectations.UnexpectedRowsExpectation(
            unexpected_rows_query="SELECT id FROM {batch} WHERE state = 'rejected'", meta={"name": "mine"}
        )
        suite = library().ExpectationSuite(name="own", expectations=[own])
        (outcome,) = quality.check(None, world.ledger, suites=[suite]).outcomes
        assert outcome.failed_count == len(world.rows("rejected"))
        with pytest.raises(TableUnreadableError, match="cannot be read: Parser Error"):
            quality.check(None, world.ledger)

    def test_bytes(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """Payloads count by their bytes, whether they are text or bytes."""
        for payload, type_ in (("é\0", pa.string()), (b"\xff\0\\x41", pa.binary())):
            world = World(tmp_path / str(type_), clock, type_)
            world.publish([message(payload=payload)])
            world.runner(embedded).once()
            assert look(None, world, "batch_bytes").ok

    def test_repeats_that_were_kept(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """A window may hold several messages of a type once the rules keep them, also after they split again."""
        world, kept = World(tmp_path, clock), {"on_repeat": "keep"}
        world.publish([message("a", NOW), message("a", NOW + 1)])
        world.runner(embedded, rules=kept).once()
        assert [row["message_count"] for row in world.rows("open")] == [2]
        world.publish([message("a", NOW + 2), message("a", NOW + 3)])
        world.runner(embedded).once()
        assert [row["message_count"] for row in world.rows("open")] == [2, 1, 1]
        assert look(None, world, "type_once_in_window").ok
        assert verify(world.depot, world.ledger).ok

    def test_infinite_times(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """A time that DuckDB takes for infinite is out of range as others are, and nothing critical fails."""
        world = World(tmp_path, clock)
        world.publish(
            [row for end in (2**63 - 1, 1 - 2**63) for row in (message("a", end, NOW), message("a", NOW, end))]
        )
        assert world.runner(embedded).once().total("rejected") == 4
        checked = quality.check(None, world.ledger)
        assert checked.ok
        (invalid,) = [outcome for outcome in checked.outcomes if outcome.name == "rejected_not_invalid"]
        assert len(invalid.rows) == 4

    def test_a_file_that_is_gone(self, world: World) -> None:
        """A ledger that lost a file is an error of the table, not an expectation that fails."""
        next(Path(world.ledger).glob("state=closed/*/*.parquet")).unlink()
        with pytest.raises(TableUnreadableError, match=r"the ledger at .* lacks a file"):
            quality.check(None, world.ledger)

    @pytest.mark.slow
    def test_rows_that_a_file_alone_does_not_tell(self, world: World, spark: Any) -> None:
        """In a ledger with deletion vectors a row that is gone is missing, although it is still in a file."""
        ledger, gone = f"delta.`{world.ledger}`", world.rows("closed")[0]["id"]
        spark.sql(f"ALTER TABLE {ledger} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        assert look(None, world, "closed_batches_there").ok
        spark.sql(f"DELETE FROM {ledger} WHERE id = '{gone}'")
        assert not look(None, world, "closed_batches_there").ok


class TestPage:
    def test_every_expectation_has_its_row(self) -> None:
        """The reference of expectations is the one that the code makes, and has all warnings."""
        page = generate.expectations_page()
        assert {name for name in WARNINGS if f"| `{name}` | warning |" in page} == set(WARNINGS)
        assert (HOME / "expectations.md").read_text(encoding="utf-8") == page, "make reference writes it anew"

    @pytest.mark.slow_on_spark
    def test_python(self, world: World, session: Any) -> None:
        """The Python of the page runs, with an expectation of one's own that fails, with Spark and without."""
        (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
        library()  # a warning of its import is no error
        namespace: dict[str, Any] = {"spark": session}
        exec(block.replace("/srv/data/ledger", world.ledger), namespace)  # noqa: S102 - our own page
        (own,) = [outcome for outcome in namespace["checked"].outcomes if outcome.name == "none_of_ours"]
        assert (own.severity, own.passed, own.failed_count) == ("critical", False, 5)

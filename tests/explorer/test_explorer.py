"""All schedules of small scenarios, the tables in memory next to real ones, and bugs that have to be found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.clocks import ManualClock
from tests.engine.factory import EMBEDDED
from tests.engine.world import World
from tests.explorer import invariants
from tests.explorer.bugs import BUGS, Bug
from tests.explorer.defects import (
    OUT_OF_REACH,
    Finding,
    Record,
    explored_guards,
    find_defect,
    look_for,
    planted_bugs,
    relevant_scenarios,
)
from tests.explorer.exploration import FAULTS, Exploration, explore, tokens, undisturbed
from tests.explorer.scenarios import LOG, USUAL, Scenario, StandingClock, depot, drive
from tests.explorer.search import SCENARIOS as BY_NAME
from tests.explorer.tables import MemoryTable, Tables, merged, merging, put
from tests.guards.guard import GUARDS
from windrow.errors import ConcurrentCommitError
from windrow.ledger.versions import Growth

SCENARIOS = list(BY_NAME.values())
QUICK = [scenario for scenario in SCENARIOS if len(scenario.works) == 1 and scenario.kind == "batcher"]
OTHERS = [scenario for scenario in SCENARIOS if scenario not in QUICK]
FOUND_SOON = (
    ("a resume is forgotten by the next commit", "two drivers and a pause"),
    ("a microbatch begins one version too late", "one driver"),
)


def by_name(scenario: Scenario) -> str:
    """Return the name of a scenario for pytest."""
    return scenario.name


class TestSchedules:
    """No schedule breaks an invariant."""

    @pytest.mark.parametrize("scenario", QUICK, ids=by_name)
    def test_one_driver(self, scenario: Scenario) -> None:
        """All schedules of one driver with at most one fault; each kind of fault struck."""
        explored = explore(scenario, faults=1)
        assert (explored.broken, explored.whole) == (None, True), explored.schedule
        assert explored.ends > len(FAULTS)
        assert all(explored.struck.values())

    @pytest.mark.ci
    @pytest.mark.parametrize("scenario", OTHERS, ids=by_name)
    def test_several(self, scenario: Scenario) -> None:
        """The first schedules of several processes."""
        explored = explore(scenario, faults=1, most=100)
        assert explored.broken is None, explored.schedule
        assert explored.ends

    @pytest.mark.ci
    @pytest.mark.parametrize("scenario", SCENARIOS, ids=by_name)
    def test_random(self, scenario: Scenario) -> None:
        """Some schedules with many faults."""
        explored = explore(scenario, faults=8, walks=(2, 1))
        assert explored.broken is None, explored.schedule
        assert explored.ends == 2

    @pytest.mark.slow
    def test_reduced(self) -> None:
        """Leaving out calls whose answer nothing can change leads to the same ledgers."""
        ends = []
        for reduce in (True, False):
            with tokens():
                exploration = Exploration(OTHERS[0], 0, reduce)
                exploration.run(None, lambda explored: None)
                exploration.end()
            ends.append((exploration.finished, exploration.explored.states))
        (reduced, fewer), (whole, more) = ends
        assert reduced == whole
        assert fewer < more

    @pytest.mark.slow
    @pytest.mark.parametrize("scenario", SCENARIOS, ids=by_name)
    def test_all(self, scenario: Scenario) -> None:
        """All schedules with up to two faults, as far as that ends."""
        for faults in (0, 1, 2):
            explored = explore(scenario, faults, most=30_000)
            assert explored.broken is None, explored.schedule
            assert explored.ends


class TestBugs:
    """What is planted is found."""

    @pytest.mark.ci
    @pytest.mark.parametrize(("name", "scenario"), FOUND_SOON)
    def test_found_soon(self, tmp_path: Path, name: str, scenario: str) -> None:
        """One scenario is enough for some of them."""
        bug = next(bug for bug in planted_bugs() if bug.name == name)
        finding = find_defect(bug, _record(tmp_path, scenario))
        assert (finding.broken is not None, finding.scenario) == (True, scenario), finding

    @pytest.mark.ci
    def test_without_a_guard(self, tmp_path: Path) -> None:
        """Rows that another attempt has read are read twice without a guard; the record has it for the next run."""
        record = _record(tmp_path, "two drivers")
        guard = next(one for one in explored_guards() if one.name == "filtered-by-version")
        [(defect, finding)] = look_for([guard], record, float("inf"))
        assert defect == guard
        assert "each message once" in str(finding.broken)
        again = Record(tmp_path / "record.json")
        assert again.findings == {guard.key: finding}
        assert not list(look_for([guard], _with_scenarios(again, "two drivers"), float("inf")))

    @pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
    def test_planted(self, bug: Bug) -> None:
        """Each bug changes a place that is there, into code that can be compiled."""
        assert compile(bug.planted(), bug.path, "exec")

    def test_record(self, tmp_path: Path) -> None:
        """What was found of other code, or of another defect under the same name, does not count."""
        file, guard = tmp_path / "record.json", explored_guards()[0]
        record = Record(file)
        record.findings[guard.key] = Finding(guard.digest, 1, 2)
        record.write()
        assert Record(file).has(guard)
        assert not Record(file).has(replace(guard, digest="another"))
        file.write_text(file.read_text().replace('"code": "', '"code": "0'))
        assert not Record(file).has(guard)

    def test_relevant_scenarios(self) -> None:
        """A guard is looked for where it was reached, a condition where it struck; first what is new for its cost."""
        reached, strikes = "token-of-its-own", "filtered-by-version"
        undisturbed = [
            _undisturbed("slow", 3.0, {reached: (1, 0), strikes: (1, 1)}),
            _undisturbed("quick", 1.0, {reached: (1, 0), strikes: (1, 0)}),
            _undisturbed("elsewhere", 2.0, {}),
        ]
        by_name = {guard.name: guard for guard in explored_guards()}
        assert relevant_scenarios(by_name[reached], undisturbed) == ["quick", "slow"]
        assert relevant_scenarios(by_name[strikes], undisturbed) == ["slow"]
        assert relevant_scenarios(planted_bugs()[0], undisturbed) == ["quick", "slow", "elsewhere"]

    def test_out_of_reach(self) -> None:
        """Guards are out of reach by files that there are, and some are not."""
        for path in OUT_OF_REACH:
            assert any(guard.path.startswith(path) for guard in GUARDS), path
        assert explored_guards()


def _record(directory: Path, *scenarios: str) -> Record:
    return _with_scenarios(Record(directory / "record.json"), *scenarios)


def _with_scenarios(record: Record, *scenarios: str) -> Record:
    """Return a record in which every guard was reached in some scenarios, and strikes there."""
    every = {guard.name: (1, 1) for guard in GUARDS}
    record.undisturbed = [_undisturbed(name, 1.0, every) for name in BY_NAME if name in scenarios]
    record.undisturbed += [_undisturbed(name, 1.0, {}) for name in BY_NAME if name not in scenarios]
    return record


def _undisturbed(scenario: str, seconds: float, counts: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Return what is recorded of a scenario: how often it reached guards, and how often these struck."""
    counted = [list(counts.get(guard.name, (0, 0))) for guard in GUARDS]
    return {"scenario": scenario, "seconds": seconds, "counts": counted}


class TestLikeRealTables:
    """The tables in memory do what the tables of delta-rs do; `engine/test_growing.py` has the same races on these."""

    def test_same_ledger(self, tmp_path: Path) -> None:
        """A driver writes the same rows into both."""
        world = World(tmp_path, ManualClock(StandingClock().now()))
        world.publish(*LOG)
        world.runner(EMBEDDED, max_messages=USUAL["max_messages"]).once()
        memory = undisturbed(Scenario("", {}).program("only", drive), Tables(depot(len(LOG)))).ledger
        content = invariants.content_of(memory.versions[-1])
        real = {state: world.rows(state) for state in ("open", "closed", "rejected", "microbatch")}
        assert [len(rows) for rows in real.values()] == [
            len(rows) for rows in (content.open, content.closed, content.rejected, content.history)
        ]
        for state, ours in (("open", content.open), ("closed", content.closed), ("rejected", content.rejected)):
            assert [_decided(row) for row in real[state]] == [_decided(row) for row in sorted(ours, key=_id)]

    @pytest.mark.parametrize("between", ["commit", "fold", "restore"])
    def test_files(self, between: str) -> None:
        """A commit of files is refused after any other version."""
        now = _filled()
        moved = _moved(now, between)
        with pytest.raises(ConcurrentCommitError):
            put(moved, now.ledger.latest, "commit", added=_no_rows(now))
        assert put(now, now.ledger.latest, "commit", added=_no_rows(now)).ledger.latest == now.ledger.latest + 1

    @pytest.mark.parametrize(("between", "refused"), [("commit", True), ("fold", False), ("restore", True)])
    def test_merge(self, between: str, refused: bool) -> None:
        """A MERGE is refused if rows were added since it read, not after a fold."""
        now = _filled()
        read = merging(now, _token(now))
        moved = _moved(now, between)
        if refused:
            with pytest.raises(ConcurrentCommitError):
                merged(moved, read, _no_rows(now))
        else:
            assert merged(moved, read, _no_rows(now)).ledger.latest == moved.ledger.latest + 1

    def test_merge_reads_the_token(self) -> None:
        """A MERGE is refused that begins after another commit."""
        with pytest.raises(ConcurrentCommitError):
            merging(_filled(), "another token")


def _filled() -> Tables:
    return undisturbed(Scenario("", {}).program("only", drive), Tables(depot(len(LOG))))


def _moved(now: Tables, between: str) -> Tables:
    """Return the tables after another commit."""
    ledger: MemoryTable = now.ledger
    if between == "restore":
        return replace(now, ledger=ledger.restored(ledger.latest - 1))
    if between == "fold":
        return put(now, ledger.latest, "fold", folded=Growth.of(ledger.versions[-1].live))
    return put(now, ledger.latest, "commit", added=_no_rows(now))


def _no_rows(now: Tables) -> pa.Table:
    return now.ledger.versions[-1].rows.slice(0, 0)


def _token(now: Tables) -> str:
    token: str = invariants.content_of(now.ledger.versions[-1]).progress["token"]
    return token


def _id(row: dict[str, Any]) -> str:
    found: str = row["id"]
    return found


def _decided(row: dict[str, Any]) -> dict[str, Any]:
    """Return what decides about the messages of a row."""
    parts = [part["payload"] for part in row.get("messages") or ()]
    names = ("source", "key", "window_start", "window_end", "reason", "payload")
    return {name: row[name] for name in names if row.get(name) is not None} | {"parts": parts}

"""Go through all states that a scenario can lead to, and check the invariants in each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Literal, NamedTuple
from unittest.mock import patch

import pyarrow as pa

import windrow
from tests.engine.world import canonical
from tests.explorer import invariants, topologies
from tests.explorer.scenarios import LOG, Scenario, depot, resume_and_drive
from tests.explorer.scheduler import Endless, Place, Program, token
from tests.explorer.tables import Answer, MemoryTable, Tables
from windrow.runtime import driver, ledger_state, microbatch, opening

Outcome = Literal["done", "refused", "lost", "killed", "killed after"]
# What else may happen to a write, and to nothing else: who ends before a read might as well have ended later.
FAULTS: tuple[Outcome, ...] = ("refused", "lost", "killed", "killed after")
NAMES = {invariants.Broken: "", Endless: "progress: "}
LONGEST_WALK = 500  # calls of a random schedule; those of the scenarios end after some dozens
STAYS = (0.0, 0.7, 0.95)  # how likely a process of a random schedule goes on after a call
FAULTS_OF_WALKS = 0.25  # how likely a fault strikes a write in a random schedule, until there were as many as allowed
USES_TOKENS = (driver, microbatch, opening, ledger_state)


class Choice(NamedTuple):
    """Which process made its call, which one, and what became of it."""

    process: str
    call: str
    outcome: Outcome


class State(NamedTuple):
    """The tables, where each process stands, and how many faults may still happen."""

    tables: Tables
    places: tuple[Place, ...]
    faults: int

    @property
    def ended(self) -> bool:
        """Tell whether no process makes another call."""
        return all(place.call is None for place in self.places)

    @property
    def key(self) -> object:
        """Return what tells it from every other state."""
        return self.tables.key, self.places, self.faults


@dataclass
class Explored:
    """What an exploration went through: different states, calls between them, ends, runs of processes.

    `struck` counts the calls that were refused, lost, or the last of their process. `broken` is the first invariant
    that did not hold, after a `schedule`.
    """

    scenario: str
    faults: int
    states: int = 0
    calls: int = 0
    ends: int = 0
    runs: int = 0
    struck: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    seconds: float = 0.0
    whole: bool = True
    broken: str | None = None
    schedule: list[Choice] = field(default_factory=list)


def explore(
    scenario: Scenario,
    faults: int,
    most: int | None = None,
    tell: Callable[[Explored], object] = lambda explored: None,
    walks: tuple[int, int] | None = None,
) -> Explored:
    """Try all schedules with at most so many faults; of more than `most` states the first ones, depth first.

    With `walks`, a number and a seed, so many random schedules instead. Stops at the first state that breaks an
    invariant.
    """
    in_one_call()  # compiles the kernel, which a process would seem to hang in
    with tokens():
        exploration = Exploration(scenario, faults)
        try:
            return exploration.run(most, tell) if walks is None else exploration.walk(*walks, tell)
        finally:
            exploration.end()


@contextmanager
def tokens() -> Iterator[None]:
    """Let processes draw the same tokens each time that they are run."""
    with ExitStack() as stack:
        for module in USES_TOKENS:
            stack.enter_context(patch.object(module, "uuid4", token))
        stack.enter_context(topologies.in_memory())
        yield


class Exploration:
    """The states of a scenario that were seen, and how each was reached."""

    def __init__(self, scenario: Scenario, faults: int, reduce: bool = True) -> None:
        self.reduce = reduce
        self.scenario, self.explored = scenario, Explored(scenario.name, faults)
        self._programs = scenario.programs()
        self._last = scenario.program("last", LAST[scenario.kind])
        self._sound, self.finished = set[str](), set[object]()  # of ledgers, of tables
        places = tuple(program.begin() for program in self._programs.values())
        self._first = State(Tables(depot(scenario.published)), places, faults)

    def run(self, most: int | None, tell: Callable[[Explored], object]) -> Explored:
        """Go through the states, depth first."""
        explored, start = self.explored, time.perf_counter()
        reached: dict[object, tuple[object, Choice] | None] = {self._first.key: None}
        states, at = [self._first], self._first
        try:
            while states:
                if explored.states == most:
                    explored.whole = False
                    break
                at = state = states.pop()
                explored.states += 1
                if state.ended:
                    explored.ends += 1
                    self._finish(state.tables)
                for choice, after in self._following(state):
                    self._count(choice)
                    if after.key in reached:
                        continue
                    reached[after.key], at = (state.key, choice), after
                    self._check(state, after, choice)
                    states.append(after)
                    at = state
                explored.seconds = time.perf_counter() - start
                tell(explored)
        except (invariants.Broken, Endless) as broken:
            explored.broken, explored.schedule = f"{NAMES[type(broken)]}{broken}", _schedule(reached, at.key)
        explored.runs = sum(program.runs for program in (*self._programs.values(), self._last))
        return explored

    def walk(self, count: int, seed: int, tell: Callable[[Explored], object]) -> Explored:
        """Follow random schedules to their ends; `states` are the steps of all."""
        explored, start, random = self.explored, time.perf_counter(), Random(seed)
        explored.whole, schedule = False, list[Choice]()
        try:
            for _ in range(count):
                state, schedule, patience = self._first, [], random.choice(STAYS)
                while not state.ended:
                    choice, after = self._step(state, random, schedule, patience)
                    schedule.append(choice)
                    self._count(choice)
                    self._check(state, after, choice)
                    explored.states, state = explored.states + 1, after
                explored.ends += 1
                self._finish(state.tables)
                explored.seconds = time.perf_counter() - start
                tell(explored)
        except (invariants.Broken, Endless) as broken:
            explored.broken, explored.schedule = f"{NAMES[type(broken)]}{broken}", schedule
        explored.seconds = time.perf_counter() - start
        explored.runs = sum(program.runs for program in (*self._programs.values(), self._last))
        return explored

    def _step(self, state: State, random: Random, before: list[Choice], patience: float) -> tuple[Choice, State]:
        """Return a random call and the state after it; with `patience` (0 to 1) of the process that made the last one.

        Processes that take turns at every call, and those that stand still for long, lead to different faults.
        """
        if len(before) == LONGEST_WALK:
            raise Endless(f"no end after {LONGEST_WALK} calls")
        able = self._able(state)
        names = list(self._programs)
        same = [number for number in able if before and names[number] == before[-1].process]
        number = same[0] if same and random.random() < patience else random.choice(able)
        call = state.places[number].call
        strikes = call is not None and call.writes and state.faults and random.random() < FAULTS_OF_WALKS
        outcome: Outcome = random.choice(FAULTS) if strikes else "done"
        return next(self._of(state, number, (outcome,)))

    def _count(self, choice: Choice) -> None:
        self.explored.calls += 1
        if choice.outcome != "done":
            self.explored.struck[choice.outcome] += 1

    def end(self) -> None:
        """End all threads."""
        for program in (*self._programs.values(), self._last):
            program.end()

    def _following(self, state: State) -> Iterator[tuple[Choice, State]]:
        """Yield what may happen next, and the state after it.

        A call whose answer nothing can change any more comes first and alone: it would lead to the same later.
        """
        for number in self._able(state):
            call = state.places[number].call
            faults = FAULTS if state.faults and call is not None and call.writes else ()
            yield from self._of(state, number, ("done", *faults))

    def _able(self, state: State) -> list[int]:
        """Return the processes that may make their next call."""
        settled = self._settled(state)
        return [
            number for number, place in enumerate(state.places) if place.call is not None and settled in (None, number)
        ]

    def _of(self, state: State, number: int, outcomes: Sequence[Outcome]) -> Iterator[tuple[Choice, State]]:
        """Yield what may become of the next call of a process, and the state after it."""
        program, place = list(self._programs.values())[number], state.places[number]
        assert place.call is not None
        done, answer = place.call.apply(state.tables)
        for outcome in outcomes:
            there = self._after(program, place, outcome, answer)
            places = (*state.places[:number], there, *state.places[number + 1 :])
            applied = state.tables if outcome in ("refused", "killed") else done
            after = State(applied, places, state.faults - (outcome != "done"))
            yield Choice(program.name, place.call.name, outcome), after

    def _settled(self, state: State) -> int | None:
        """Return the first process whose next call is settled."""
        if not self.reduce or any(
            place.call is not None and name in self.scenario.writers
            for name, place in zip(self._programs, state.places, strict=True)
        ):
            return None
        calls = enumerate(place.call for place in state.places)
        return next((number for number, call in calls if call is not None and call.settled(state.tables)), None)

    def _after(self, program: Program, place: Place, outcome: Outcome, answer: Answer) -> Place:
        """Return where a process stands after its call; a killed one begins again, if it has a life left."""
        if outcome == "done":
            return program.after(place, answer)
        if outcome in ("refused", "lost"):
            return program.after(place, Answer("failed", error=OSError("the store did not answer")))
        if place.life < program.lives:
            return program.begin(place.life + 1)
        return ENDED

    def _check(self, before: State, after: State, choice: Choice) -> None:
        """Check what the call did to the ledger, and how its process ended if it did. Raises Broken."""
        ledger = after.tables.ledger
        if ledger is not before.tables.ledger and ledger.digest not in self._sound:
            CHECK[self.scenario.kind](after.tables)
            self._sound.add(ledger.digest)
        place = after.places[list(self._programs).index(choice.process)]
        if place.error is not None and not (_expected(place.error) or self.scenario.stops(place.error)):
            raise invariants.Broken(f"progress: {choice.process} ended with {place.error!r}")
        if place is not ENDED and place.call is None and place.error is None:
            self._require_read(choice.process, ledger)

    def _require_read(self, process: str, ledger: MemoryTable) -> None:
        """Require of a driver that ended that the ledger has read what was there when it began. Raises Broken."""
        if self.scenario.reads_all and process not in self.scenario.writers:
            version = READ[self.scenario.kind](ledger) if ledger.versions else -1
            if version < self.scenario.published - 1:
                raise invariants.Broken(f"progress: {process} ended, but the ledger is at version {version}")

    def _finish(self, tables: Tables) -> None:
        """Let one more driver read the rest undisturbed, and compare the result. Raises Broken."""
        tables = replace(tables, depot=depot(len(LOG)))
        if tables.key in self.finished:
            return
        self.finished.add(tables.key)
        ended = undisturbed(self._last, tables)
        CHECK[self.scenario.kind](ended)
        version = READ[self.scenario.kind](ended.ledger)
        if version != ended.depot.latest:
            raise invariants.Broken(f"progress: read up to version {version}")
        if self.scenario.kind != "batcher":
            topologies.check_end(ended, self.scenario.same, self.scenario.kind == "timers")
        elif self.scenario.same and invariants.outcome(ended.ledger) != in_one_call():
            raise invariants.Broken("the same result: the batches are other ones than those of one call")


CHECK = {"batcher": invariants.check, "topology": topologies.check, "timers": topologies.check_timers}
READ = {"batcher": invariants.version_read, "topology": topologies.version_read, "timers": topologies.version_read}
LAST = {
    "batcher": resume_and_drive,
    "topology": topologies.resume_and_count,
    "timers": topologies.resume_and_remind,
}
ENDED = Place("", 0, (), None)


def undisturbed(program: Program, tables: Tables) -> Tables:
    """Run one process to its end, and return the tables. Raises Broken."""
    place, calls = program.begin(), 0
    while place.call is not None:
        if (calls := calls + 1) > LONGEST_WALK:
            raise invariants.Broken(f"progress: a driver alone makes more than {LONGEST_WALK} calls")
        tables, answer = place.call.apply(tables)
        place = program.after(place, answer)
    if place.error is not None:
        raise invariants.Broken(f"progress: a driver alone ended with {place.error!r}")
    return tables


@cache
def in_one_call() -> object:
    """Return the batches and rejected messages of one call of `windrow.batch`, which knows no ledger."""
    added = [version.added for version in depot(len(LOG)).versions]
    versions = [rows.append_column("version", pa.repeat(number, len(rows))) for number, rows in enumerate(added)]
    batched = windrow.batch(pa.concat_tables(versions), windrow.Rules())
    return canonical(batched.batches.to_pylist(), batched.rejected.to_pylist())


def _expected(error: BaseException) -> bool:
    """Tell whether a process may end so: the store did not answer it as often as it tries again."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, OSError)


def _schedule(reached: Mapping[object, tuple[object, Choice] | None], key: object) -> list[Choice]:
    """Return the choices that led to a state."""
    choices = list[Choice]()
    while (step := reached.get(key)) is not None:
        key, choice = step
        choices.append(choice)
    return choices[::-1]

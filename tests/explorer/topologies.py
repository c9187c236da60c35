"""A topology in memory: a table of states, and what its commits do not contain, an output and plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc

from tests.explorer.invariants import WHILE_PAUSED, Broken
from tests.explorer.scenarios import FOLDS, HOUR, LOG, MERGE, USUAL, Scenario, StandingClock, Work, publish, restore
from tests.explorer.tables import MemoryLedger, MemorySource, MemoryTable, Shared, Tables, TableVersion
from windrow.columnar.arrow import TIME
from windrow.delta.log import TableInfo
from windrow.delta.table import overtaken_error
from windrow.errors import NotFoundError
from windrow.ledger.versions import latest
from windrow.model import tables
from windrow.model.id_filter import IdFilter
from windrow.settings.settings import Settings
from windrow.testing.clock import NOW
from windrow.topology import Microbatch, Topology, reading
from windrow.topology import rollback as of_rollback
from windrow.topology.depots import settings_of
from windrow.topology.running import rollback, runner_of
from windrow.topology.states_table import StatesTable

if TYPE_CHECKING:
    from tests.explorer.scheduler import Execution
    from windrow.engine.engine import Engine
    from windrow.runtime.loop import Runner


def counting() -> Topology:
    """Return a topology that counts messages by type, and copies them to an output."""
    topology = Topology("counting", {"messages": "depot"}, "ledger", outputs={"copies": "output"})
    topology.state("counts", key="type STRING", value="times BIGINT")

    @topology.function
    def count(microbatch: Microbatch) -> None:
        rows = microbatch.rows("messages")
        microbatch.state("counts").combine(rows, times="count")
        microbatch.append("copies", rows.select(["payload"]))

    return topology


def reminding() -> Topology:
    """Return the same topology, which copies each message a second time when its timer fires."""
    topology = counting()
    topology.timer("reminder", key="about STRING")

    @topology.function
    def remind(microbatch: Microbatch) -> None:
        rows = microbatch.rows("messages").group_by("payload").aggregate([("event_time", "max")])
        due = [DUE[payload] for payload in rows["payload"].to_pylist()]
        microbatch.schedule("reminder", pa.table({"about": rows["payload"], "due": pa.array(due, TIME)}))
        fired = microbatch.due("reminder")["about"]
        microbatch.append("copies", pa.table({"payload": pc.binary_join_element_wise("again", fired, " ")}))

    return topology


class MemoryEngine:
    """Appends to the output, and keeps plans."""

    name, remote, session_at_work = "embedded", False, None
    place = staticmethod(str)

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def side_files(self, place: str) -> MemoryPlans:
        """Return the plans."""
        return MemoryPlans(self._shared)

    def free_number(self, place: str, application: str, least: int) -> int:
        """Return the first number from `least` on that the output has not recorded."""
        highest: int = self._shared.read(
            "number", lambda now: _number(now.output), lambda now: str(_number(now.output))
        )
        return max(least, highest + 1)

    def append(self, place: str, rows: Sequence[pa.Table], transaction: tuple[str, int], note: str) -> None:
        """Append rows, unless the output has this transaction."""
        _, number = transaction
        added = pa.concat_tables(rows)

        def appended(now: Tables) -> Tables | None:
            if _number(now.output) > number:
                raise overtaken_error(place)
            if _number(now.output) == number:
                return None
            before = now.output.versions[-1].rows if now.output.versions else added.slice(0, 0)
            output = now.output.with_version(str(number), pa.concat_tables([before, added]), added)
            return replace(now, output=output)

        self._shared.write("append", appended)


def _number(output: MemoryTable) -> int:
    """Return the last transaction of the output."""
    return int(output.versions[-1].operation) if output.versions else 0


class MemoryPlans:
    """Small texts, created only where there is none."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def read(self, name: str) -> str | None:
        """Return a text."""
        text: str | None = self._shared.read("plan", lambda now: dict(now.plans).get(name), lambda now: str(now.plans))
        return text

    def create(self, name: str, text: str) -> bool:
        """Create a text, and tell whether there was none."""
        return self._shared.write("new plan", lambda now: None if name in dict(now.plans) else _with(now, {name: text}))

    def replace(self, name: str, text: str) -> None:
        """Put a text in the place of another one."""
        self._shared.write("next attempt", lambda now: _with(now, {name: text}))

    def delete(self, name: str) -> None:
        """Delete a text."""
        self._shared.write("forget plan", lambda now: _with(now, {name: None}))


def _with(now: Tables, texts: Mapping[str, str | None]) -> Tables:
    plans = {name: text for name, text in {**dict(now.plans), **texts}.items() if text is not None}
    return replace(now, plans=tuple(sorted(plans.items())))


class MemoryStates(MemoryLedger):
    """The table of states."""

    def __init__(self, settings: Settings, shared: Shared) -> None:
        super().__init__(settings, shared)
        self.engine = self.tables = cast("Engine", MemoryEngine(shared))

    def version_after(self, microbatch: int | None) -> pa.Table:
        """Return the rows of the latest version, or of the last one after a microbatch. Raises NotFoundError."""
        known: MemoryTable = self._shared.read("history", lambda now: now.ledger, lambda now: now.ledger.digest)
        rows = [version.rows for version in known.versions]
        if microbatch is not None:
            rows = [row for row in rows if Content(row).progress["microbatch"] == microbatch]
        if not rows:
            raise NotFoundError(f"there is no microbatch {microbatch}", "")
        return rows[-1]

    def create(self, first: pa.Table, keep: str) -> None:
        """Put version 0, unless there is one; a table that is read back may have NULL anywhere."""
        super().create(first.cast(pa.schema([field.with_nullable(True) for field in first.schema])), keep)

    def table(self) -> TableInfo | None:
        """Return the table with its latest version, after which a plan asks."""
        known: MemoryTable = self._shared.read("ledger", lambda now: now.ledger, lambda now: str(now.ledger.latest))
        schema = known.versions[0].rows.schema if known.versions else None
        return None if schema is None else TableInfo("ledger", known.latest, schema, pa.string(), has_change_feed=False)


@dataclass(frozen=True, slots=True)
class MemoryVersion(StatesTable):
    """The rows of one version of the table of states."""

    table: pa.Table

    @property
    def schema(self) -> pa.Schema:
        """Return its columns."""
        return self.table.schema

    def rows(
        self, states: Collection[str], columns: Collection[str] | None = None, under: IdFilter | None = None
    ) -> pa.Table:
        """Return rows of some states."""
        rows = self.table.filter(pc.is_in(self.table["state"], pa.array(states)))
        return rows if columns is None else rows.select([name for name in columns if name in rows.column_names])


def states_of(ledger: MemoryStates, microbatch: int | None = None, spark: object = None) -> MemoryVersion:
    """Return the table of states as it is, or as it was after a microbatch. Raises NotFoundError."""
    return MemoryVersion(ledger.version_after(microbatch))


def runner(
    execution: Execution, values: Mapping[str, Any], made: Callable[[], Topology] = counting, ahead: int = 0
) -> Runner:
    """Return a runner of a process, with the settings of a scenario and a clock that is `ahead` (microseconds)."""
    topology, shared = made(), Shared(execution)
    settings = Settings(depot="depot", ledger="ledger", **(dict(USUAL) | dict(values)))
    used = {name: settings_of(topology, depot, settings) for name, depot in topology.depots.items()}
    sources = {name: MemorySource(one, shared, rows=True) for name, one in used.items()}
    return runner_of(topology, sources, MemoryStates(settings, shared), StandingClock(ahead))


def count(execution: Execution, values: Mapping[str, Any]) -> None:
    """Read the depot to its end."""
    runner(execution, values).once()


def resume_and_count(execution: Execution, values: Mapping[str, Any]) -> None:
    """End a pause that somebody left, and read the depot to its end."""
    last = runner(execution, values)
    last.resume()
    last.once()


def remind(execution: Execution, values: Mapping[str, Any]) -> None:
    """Read the depot to its end, and fire what is due."""
    runner(execution, values, reminding).once()


def remind_fast(execution: Execution, values: Mapping[str, Any]) -> None:
    """The same, with a clock that is an hour fast."""
    runner(execution, values, reminding, HOUR).once()


def resume_and_remind(execution: Execution, values: Mapping[str, Any]) -> None:
    """End a pause that somebody left, read the depot to its end, and fire what is due."""
    last = runner(execution, values, reminding)
    last.resume()
    last.once()


def roll_back(execution: Execution, values: Mapping[str, Any]) -> None:
    """Roll back to the first microbatch, if there was one."""
    with suppress(NotFoundError):
        rollback(runner(execution, values), 1)


def pause_and_resume(execution: Execution, values: Mapping[str, Any]) -> None:
    """Pause the topology, and resume it."""
    control = runner(execution, values)
    control.pause()
    control.resume()


class Content:
    """What one version of the table of states says."""

    def __init__(self, rows: pa.Table) -> None:
        live = latest(rows.filter(tables.is_live(rows["state"])))
        by_id = {row["id"]: row for row in live.to_pylist()}
        self.progress = by_id[tables.PROGRESS]
        self.read = by_id["depot/messages"]["depot_version"]
        self.counts = {row["type"]: row["times"] for row in by_id.values() if row["state"] == "counts"}
        self.waiting = {row["about"] for row in by_id.values() if row["state"] == "reminder"}
        history = rows.filter(pc.equal(rows["state"], "microbatch")).to_pylist()
        self.history = sorted(history, key=lambda row: row["microbatch"])


_CONTENT: dict[str, Content] = {}


def content_of(version: TableVersion) -> Content:
    """Return what a version of the table of states says; most schedules lead to versions that others led to before."""
    if version.digest not in _CONTENT:
        _CONTENT[version.digest] = Content(version.rows)
    return _CONTENT[version.digest]


@contextmanager
def in_memory() -> Iterator[None]:
    """Let a rollback read the table of states from memory."""
    with patch.object(of_rollback, "states_of", states_of), patch.object(reading, "states_of", states_of):
        yield


def check(now: Tables) -> None:
    """Check the invariants of the version of the table of states that was put last. Raises Broken."""
    if len(now.ledger.versions) < 2:
        return
    before, after = (content_of(version) for version in now.ledger.versions[-2:])
    sent = [row for rows in LOG[: after.read + 1] for row in rows]
    if after.counts != dict(Counter(row["type"] for row in sent)):
        raise Broken(f"each message once: {after.counts} after version {after.read}")
    numbers = [row["microbatch"] for row in after.history]
    if numbers != sorted({*numbers}) or numbers[-1:] not in ([], [after.progress["microbatch"]]):
        raise Broken(f"the books: microbatches {numbers} of {after.progress['microbatch']}")
    kinds = {row["kind"] for row in after.history[len(before.history) :]}
    if before.progress["paused"] and now.ledger.versions[-1].operation != "restore":
        if not kinds <= WHILE_PAUSED:
            raise Broken(f"a pause holds: {kinds} while the topology was paused")
        if not after.progress["paused"] and "resume" not in kinds:
            raise Broken(f"a pause holds: {kinds} ended it")
    if kinds == {"data"} and not _sent_rows(after.read) <= _copied(now):
        raise Broken(f"outputs equal states: {_sent_rows(after.read) - _copied(now)} are missing")


def check_timers(now: Tables) -> None:
    """Check the same, and that the timer of each message that was read waits or has fired. Raises Broken."""
    check(now)
    if len(now.ledger.versions) < 2:
        return
    after = content_of(now.ledger.versions[-1])
    copied, read = _copied(now), set(_sent_rows(after.read))
    if not after.waiting <= read:
        raise Broken(f"timers fire once: {after.waiting - read} wait, but were not read")
    lost = {payload for payload in read - after.waiting if not copied[f"again {payload}"]}
    if lost:
        raise Broken(f"timers fire once: {lost} neither wait nor have fired")


def version_read(states: MemoryTable) -> int:
    """Return up to which version of the depot a topology has read."""
    version: int = content_of(states.versions[-1]).read
    return version


def check_end(now: Tables, same: bool, timers: bool) -> None:
    """Check what must hold when all was read; with `same`, nothing took back what was committed. Raises Broken."""
    content = content_of(now.ledger.versions[-1])
    copied, sent = _copied(now), _sent_rows(content.read)
    if timers:
        overdue = {payload for payload in content.waiting if DUE[payload] <= StandingClock().now()}
        if overdue:
            raise Broken(f"timers fire once: {overdue} are overdue")
        sent += Counter(f"again {payload}" for payload in set(sent) - content.waiting)
    if not sent <= copied or (same and copied != sent):
        raise Broken(f"outputs equal states: {copied - sent} too often, {sent - copied} missing")


def _sent_rows(version: int) -> Counter[str]:
    return Counter(str(row["payload"]) for rows in LOG[: version + 1] for row in rows)


def _copied(now: Tables) -> Counter[str]:
    return Counter(now.output.versions[-1].rows["payload"].to_pylist() if now.output.versions else [])


# When the timer of a message is due: at its first microbatch, at a later one, or only for a clock that is an hour fast.
DUE_HOURS = {"#1": 0, "#2": 1, "#3": 0.5, "#4": 2, "#5": 1.5, "#6": 0, "#7": 1, "#8": 0.5}
DUE = {payload: NOW + int(hours * HOUR) for payload, hours in DUE_HOURS.items()}
TICKS = {"idle_timeout": "1d"}  # which no source is, but timers are fired in microbatches of their own
REMINDERS: Sequence[tuple[str, Mapping[str, Work], Mapping[str, Any], bool]] = (
    ("one driver", {"driver": remind}, {}, True),
    ("two drivers", {"one": remind, "two": remind}, {}, True),
    ("two drivers, by MERGE", {"one": remind, "two": remind}, MERGE, True),
    ("two drivers, folds", {"one": remind, "two": remind}, FOLDS, True),
    ("two drivers, one clock an hour fast", {"one": remind, "fast": remind_fast}, {}, True),
    ("two drivers and a RESTORE", {"one": remind, "two": remind, "restore": restore}, {}, False),
    ("three drivers, one clock an hour fast", {"one": remind, "two": remind, "fast": remind_fast}, {}, True),
)
GROWS = "two drivers, a depot that grows and a RESTORE"
TWO: Mapping[str, Work] = {"one": count, "two": count}
SCENARIOS: Sequence[Scenario] = tuple(
    Scenario(f"a topology: {name}", works, values, published, same=same, kind="topology")
    for name, works, values, same, published in (
        ("one driver", {"driver": count}, {}, True, 2),
        ("two drivers", TWO, {}, True, 2),
        ("two drivers, by MERGE", TWO, MERGE, True, 2),
        ("two drivers, folds", TWO, FOLDS, True, 2),
        ("two drivers and a pause", {**TWO, "pause": pause_and_resume}, {}, True, 2),
        ("two drivers and a rollback", {**TWO, "rollback": roll_back}, {}, False, 2),
        (
            "a driver, a pause and a rollback",
            {"one": count, "pause": pause_and_resume, "rollback": roll_back},
            {},
            False,
            2,
        ),
        ("two drivers and a RESTORE", {**TWO, "restore": restore}, {}, False, 2),
        # A plan of one driver may have more versions than that of the other, which comes late.
        (GROWS, {**TWO, "producer": publish, "restore": restore}, {"max_messages": 100}, False, 1),
        ("three drivers", {**TWO, "three": count}, {}, True, 2),
    )
) + tuple(
    Scenario(f"a topology with timers: {name}", works, {**TICKS, **values}, same=same, kind="timers")
    for name, works, values, same in REMINDERS
)

"""One depot, one ledger and a clock: what a test publishes, runs and reads."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.parquet import ParquetFile

import windrow
from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.messages import SCHEMA, Row, table
from tests.probes import Tables, Wrapped, runner_on, with_probe
from windrow.columnar.arrow import to_plain_types
from windrow.delta.creation import create_depot
from windrow.delta.table import beyond_files
from windrow.model import tables
from windrow.model.admission import REFUSED
from windrow.model.messages import times
from windrow.model.rejected_rows import rejection_rows
from windrow.replaying import Replay, replay
from windrow.runtime.batcher import Batcher
from windrow.runtime.driver import RunSummary
from windrow.runtime.loop import Runner
from windrow.runtime.microbatch import MicrobatchAttempt
from windrow.settings.settings import Settings
from windrow.testing.points import Probe
from windrow.verify import verify

SKEW = 300_000_000
MAX_MICROBATCHES = 50
WHILE_PAUSED = {"resume", "option", "rollback"}
MICROBATCH_NUMBERS = {"opened_microbatch", "closed_microbatch", "microbatch"}
BATCH = [name for name, _ in tables.batch_fields(pa.string()) if name not in MICROBATCH_NUMBERS]
REJECTED = [name for name, _ in tables.rejected_fields(pa.string()) if name not in MICROBATCH_NUMBERS]


class World:
    """Tables under a directory; every engine that a test opens works on them."""

    raw = False
    order: ClassVar[Mapping[str, Any]] = {}  # to drivers in processes of their own
    live: ClassVar[Sequence[str]] = ("open",)
    final: ClassVar[Sequence[str]] = ("closed", "rejected", "microbatch")
    read_by_rivals: ClassVar[list[list[int]]] = [[1], [2, 3]]  # the first of them may read 30 messages, the second 60
    attempts_of_rivals: ClassVar[set[int]] = {1}
    rules: ClassVar[Sequence[Mapping[str, Any]]] = (  # what drivers are set to: the first as a rule
        {"rules": {}},
        {"rules": {"max_delay": "8s"}},
        {"rules": {"max_delay": "0s"}},
        {"rules": {"window": "20s", "max_lead": "3s"}},
        {"rules": {"window": "6s", "window_anchor": "aligned"}},
    )

    def __init__(
        self, root: Path, clock: ManualClock, payload: pa.DataType | None = None, ledger: str = "ledger"
    ) -> None:
        self.clock, self.payload = clock, payload or pa.string()
        self.depot, self.ledger = str(root / "depot"), str(root / ledger)
        create_depot(self.depot, self.payload)

    def filled_from(self, directory: Path) -> Self:
        """Take copies of the tables in a directory, which are made once for many tests, in place of the empty depot."""
        shutil.rmtree(self.depot)
        shutil.copytree(directory, Path(self.depot).parent, dirs_exist_ok=True)
        return self

    def publish(self, *versions: Iterable[Row]) -> None:
        """Append depot versions."""
        for rows in versions:
            write_deltalake(self.depot, table(rows, self.payload), mode="append")

    def tables(self, factory: EngineFactory, **settings: Any) -> Tables:
        """Open the tables with an engine."""
        return factory.open(self.depot, self.ledger, **settings)

    def settings(self, factory: EngineFactory, **settings: Any) -> Settings:
        """Return the settings of these tables."""
        return factory.settings(self.depot, self.ledger, **settings)

    def runner(self, factory: EngineFactory, wrapped: Wrapped | None = None, **settings: Any) -> Runner:
        """Return a runner without idle ticks unless set, on the tables as `wrapped` returns them.

        It fails the test rather than go on forever. If nothing interferes, it tries nothing again: a failure that the
        next attempt hides may have left something behind.
        """
        usual = {"idle_timeout": "never"} | ({"max_retries": 0} if wrapped is None else {})
        tables = self.tables(factory, **(usual | settings))
        runner = self.made(tables if wrapped is None else wrapped(tables), report=lambda _: still_ends(runner.summary))
        return runner

    def made(self, tables: Tables, **called: Any) -> Runner:
        """Return a runner on tables, on the clock of this world unless another is given."""
        return runner_on(tables, called.pop("clock", self.clock), **called)

    def probed(self, factory: EngineFactory, at: Probe, **settings: Any) -> Runner:
        """Return a runner with a probe."""
        return self.runner(factory, with_probe(at), **settings)

    def microbatch(self, factory: EngineFactory) -> MicrobatchAttempt:
        """Return a primed microbatch."""
        tables = self.tables(factory)
        return MicrobatchAttempt(tables.ledger, tables.sources, Batcher(windrow.Rules()), self.clock)

    def rows(self, *states: str, version: int | None = None) -> list[Row]:
        """Return ledger rows of the given states, ordered by id, at a version of the ledger."""
        return ledger_rows(self.ledger, *states, version=version)

    def rows_by_file(self, known: dict[str, list[Row]], *states: str, version: int) -> list[Row]:
        """Return ledger rows of the given states at a version. A file never changes, so `known` has what was read."""
        table = DeltaTable(self.ledger, version=version)
        if "://" in self.ledger or beyond_files(table):
            return self.rows(*states, version=version)
        columns = dict.fromkeys(field.name for field in table.schema().fields)
        selected: list[Row] = []
        names = ["path", *(f"partition.{name}" for name in tables.PARTITIONS)]
        for file in pa.table(table.get_add_actions(flatten=True)).select(names).to_pylist():
            path, state, folded = unquote(file["path"]), file["partition.state"], file["partition.folded"]
            if state in states:
                if path not in known:
                    rows = to_plain_types(ParquetFile(Path(self.ledger, path)).read()).to_pylist()
                    known[path] = [{**columns, **row, "state": state, "folded": folded} for row in rows]
                selected += known[path]
        return sorted(that_count(selected), key=lambda row: row["id"])

    def history(self) -> list[Row]:
        """Return the history in order."""
        return sorted(self.rows("microbatch"), key=lambda row: row["microbatch"])

    def kinds(self) -> list[str]:
        """Return the kinds of the microbatches in order."""
        return [row["kind"] for row in self.history()]

    def version(self) -> int:
        """Return the ledger's table version."""
        return DeltaTable(self.ledger).version()

    def clocks(self) -> dict[str, tuple[Any, Any]]:
        """Return clock and floor of every source."""
        rows = [row for row in self.rows("progress") if row["id"] != tables.PROGRESS]
        return {row["source"]: (row["clock"], row["floor"]) for row in rows}

    def canonical(self, version: int | None = None) -> list[Row]:
        """Return what the ledger says of the messages, without what depends on how the log was cut."""
        return canonical(self.rows("open", "closed", version=version), self.rows("rejected", version=version))

    def arrived(self, depot: str | None = None) -> pa.Table:
        """Return all messages of the depot, or another one, with their `version`."""
        feed = to_plain_types(pa.table(DeltaTable(depot or self.depot).load_cdf(starting_version=0)))
        inserted = feed.filter(pc.equal(feed["_change_type"], "insert"))
        return inserted.rename_columns({"_commit_version": "version"})

    def expected(self, after: int = 0, now: int | None = None, flush: bool = False) -> list[Row]:
        """Return the canonical form that one call of `windrow.batch` over the depot gives, from a version on."""
        arrived = self.arrived()
        arrived = arrived.filter(pc.greater_equal(arrived["version"], after))
        ahead = is_ahead(arrived)
        rules = windrow.Rules(**self.rules[0].get("rules", {}))
        batched = windrow.batch(arrived.filter(pc.invert(ahead)), rules, now=now, flush=flush)
        refused = batched.rejected.to_pylist() + clock_ahead(arrived.filter(ahead))
        return canonical(batched.batches.to_pylist(), refused)

    def expected_floors(self) -> dict[str, Any]:
        """Return the floors that one call of `windrow.batch` over the depot leaves."""
        arrived = self.arrived()
        floors = windrow.batch(arrived.filter(pc.invert(is_ahead(arrived))), windrow.Rules()).state.floors
        return dict(zip(floors.source.to_pylist(), times(floors.floor).to_pylist(), strict=True))

    def replayed(self, into: str | None = None, **values: Any) -> Replay:
        """Replay the ledger on the embedded engine, or on Spark; other words than those of `replay` are settings."""
        ours = {name: values.pop(name) for name in set(values) & set(signature(replay).parameters)}
        return replay(self.settings(EMBEDDED, **values), into, **ours)

    def assert_balanced(self) -> None:
        """At every version of the ledger the books balance and nothing final has changed; numbers have no gaps."""
        self.check_books()
        numbers = [row["microbatch"] for row in self.history()]
        assert numbers == list(range(1, len(numbers) + 1))

    def check_books(self, after: int = -1, final: dict[str, Row] | None = None) -> tuple[int, dict[str, Row]]:
        """Check the versions after one, with the final rows of that one; return the last version and its final rows."""
        final, known = final or {}, dict[str, list[Row]]()
        for version in range(after + 1, self.version() + 1):
            rows = self.rows_by_file(known, "progress", *self.live, *self.final, version=version)
            self.check_balance(version, rows)
            self.check_totals(version, rows)
            check_pauses(version, rows)
            by_id = {row["id"]: row for row in rows}
            assert len(by_id) == len(rows), f"an id stands twice in version {version}"
            changed = [id_ for id_, row in final.items() if by_id.get(id_) is not row and by_id.get(id_) != row]
            assert not changed, f"version {version} changes what is final"
            final = {id_: row for id_, row in by_id.items() if row["state"] in self.final}
        return self.version(), final

    def check_balance(self, version: int, rows: Iterable[Row]) -> None:
        """Every message that was read is held or refused by the rows of a version."""
        read = sum(row["messages_read"] or 0 for row in rows)
        batched = sum(row["message_count"] or 0 for row in rows)
        refused = sum(row["state"] == "rejected" for row in rows)
        assert read == batched + refused, f"the books of version {version} do not balance"

    def check_totals(self, version: int, rows: Iterable[Row]) -> None:
        """The progress row of each source says how much of it is open in a version, and when the next window ends.

        That is NULL where nothing is open, and never later than the least end of an open window.
        """
        all_rows = list(rows)
        opened = [row for row in all_rows if row["state"] == "open"]
        for row in all_rows:
            if row["state"] == "progress" and row["id"] != tables.PROGRESS:
                ours = [batch for batch in opened if batch["source"] == row["source"]]
                stated = [row[name] or 0 for name in ("open_batches", "open_messages", "open_bytes")]
                counted = [sum(batch[name] for batch in ours) for name in ("message_count", "bytes")]
                assert stated == [len(ours), *counted], f"version {version} miscounts what is open of {row['source']!r}"
                end, least = row["next_window_end"], min((batch["window_end"] for batch in ours), default=None)
                assert (end is None) == (least is None), f"version {version} has a wrong end for {row['source']!r}"
                assert end is None or end <= least, f"version {version} would close {row['source']!r} too late"
        sources = {row["source"] for row in all_rows if row["state"] == "progress"}
        assert {batch["source"] for batch in opened} <= sources, f"version {version} has open batches of no source"

    def check_result(self, after: int, plain: bool) -> None:
        """The ledger of a depot that is read, from a version on, is what it would be if nothing had happened.

        By two accounts: the history done again, and where nothing but messages decided (`plain`) one call of
        `windrow.batch`, elsewhere `verify`.
        """
        ours = self.canonical()
        if any(row["messages_read"] for row in self.history()):
            assert self.replayed().equal
        if plain and self.clock.now() <= NOW + SKEW:
            assert ours == self.expected(after)
        else:
            assert verify(self.depot, self.ledger).differences == ()


class AlignedWorld(World):
    """Tables whose windows lie on the calendar as a rule."""

    rules: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"rules": {"window_anchor": "aligned", "window_offset": "3s", "on_repeat": "keep"}},
        {"rules": {"window_anchor": "aligned", "max_delay": "8s"}},
        {"rules": {"window_anchor": "aligned", "window": "4s", "max_delay": "0s", "on_repeat": "keep"}},
        {"rules": {}},
        {"rules": {"window_anchor": "event_time"}},
    )


def ledger_rows(ledger: str, *states: str, version: int | None = None) -> list[Row]:
    """Return the rows of a ledger that have some states, ordered by id."""
    # With a filter delta-rs would still look at each file: after a thousand microbatches that takes seconds.
    of_states = [("state", "in", list(states))]
    files = DeltaTable(ledger, version=version).to_pyarrow_dataset(file_pruning_predicate=of_states)
    return that_count(to_plain_types(files.to_table()).sort_by("id").to_pylist())


def that_count(rows: Iterable[Row]) -> list[Row]:
    """Return the final rows, and of the others the version of each id with the greatest revision, unless deleted.

    An open batch has the messages of its versions from the last whole one on.
    """
    all_rows = list(rows)
    versions: dict[str, list[Row]] = {}
    for row in all_rows:
        if row["state"] not in tables.FINAL:
            versions.setdefault(row["id"], []).append(row)
    current = [row for row in all_rows if row["state"] in tables.FINAL]
    for id_, of_id in versions.items():
        of_id.sort(key=lambda row: row["revision"])
        row = of_id[-1]
        if row["deleted"]:
            continue
        if row["state"] == tables.OPEN:
            assert any(version["whole"] for version in of_id), f"no version of {id_} is whole"
            row = row | {"messages": messages_of(of_id), "whole": True}
        current.append(row)
    return sorted(current, key=lambda row: row["id"])


def messages_of(versions: Iterable[Row]) -> list[Row]:
    """Return the messages of an open batch, from its versions in their order."""
    messages: list[Row] = []
    for version in versions:
        messages = version["messages"] if version["whole"] else [*messages, *version["messages"]]
    return sorted(messages, key=lambda message: (message["event_time"], message["type"].encode()))


def check_pauses(version: int, rows: Iterable[Row]) -> None:
    """Nothing is read in a version between a pause and the next resume, and its progress row knows of the pause."""
    paused = False
    for row in sorted((row for row in rows if row["state"] == "microbatch"), key=lambda row: row["microbatch"]):
        assert not paused or row["kind"] in WHILE_PAUSED, f"version {version} goes on while it is paused"
        paused = row["kind"] == "pause" or (paused and row["kind"] != "resume")
    (progress,) = [row for row in rows if row["id"] == tables.PROGRESS]
    assert progress["paused"] == paused, f"version {version} does not say whether it is paused"


def still_ends(summary: RunSummary) -> None:
    """Fail when a run has more microbatches than any test gives it."""
    if len(summary.microbatches) > MAX_MICROBATCHES:
        pytest.fail("the run does not end")


def canonical(batches: Iterable[Row], refused: Iterable[Row]) -> list[Row]:
    """Return batches and rejections in the order of their ids, without what depends on when and how they were read."""
    for row in refused:
        if row["reason"] == "clock_ahead":
            row["missed_by_us"] = None  # counted from the wall clock of the run
    rows = [picked(row, BATCH) for row in batches] + [picked(row, REJECTED) for row in refused]
    return sorted(rows, key=lambda row: row["id"])


def is_ahead(messages: pa.Table) -> pa.ChunkedArray:
    """Tell which messages are ahead of the clock where it stands at first: the runner refuses them, before any rule."""
    return pc.fill_null(pc.greater(messages["received_at"].cast(pa.int64()), NOW + SKEW), False)


def clock_ahead(messages: pa.Table) -> list[Row]:
    """Return the rejections of messages of which all are ahead of the clock."""
    row = np.arange(messages.num_rows)
    refusals = tables.rows(REFUSED, {"row": row, "reason": "clock_ahead"}, row.size)
    rejected = messages.select(SCHEMA.names).combine_chunks()
    return rejection_rows(rejected, messages["version"].to_numpy(), [refusals], None).to_pylist()


def picked(row: Row, names: Iterable[str]) -> Row:
    """Return some columns of a row."""
    return {name: row[name] for name in names}

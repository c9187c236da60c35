"""Findings about depot and ledger, on real tables with one defect each."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import HOUR, SECOND, Row, message, table
from windrow.delta.creation import create_depot
from windrow.errors import WindrowError
from windrow.operate.doctor import CODES, Finding, examine
from windrow.operate.doctor import ledger as of_ledger

pytestmark = pytest.mark.ci

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """A depot with two versions, and the ledger that has read them."""
    world = World(tmp_path, clock)
    world.publish([message()], [message("b", NOW + SECOND, NOW + SECOND)])
    world.runner(EngineFactory("embedded")).once()
    return world


def find_table_problems(world: World, now: int | None = None, **settings: Any) -> list[Finding]:
    """Return all findings; by default, the tables were just written."""
    values = {"engine": "embedded", "idle_timeout": "never"} | settings
    configured = EngineFactory(values.pop("engine")).settings(world.depot, world.ledger, **values)
    return examine(lambda: configured, written() if now is None else now)


def written() -> int:
    """Return a wall time after the latest commit."""
    return 4_000_000_000 * SECOND


def of(findings: list[Finding], code: str) -> Finding:
    """Return the one finding with a code."""
    [finding] = [finding for finding in findings if finding.code == code]
    return finding


def wrong(findings: list[Finding]) -> dict[str, str]:
    """Return what is wrong with the tables: code and level."""
    return {
        finding.code: finding.level
        for finding in findings
        if finding.level != "ok" and finding.about not in {"machine", "storage"}
    }


class TestSound:
    def test_nothing_is_wrong(self, world: World) -> None:
        """Tables that Windrow made and ran have nothing wrong with them, and there is nothing to do."""
        findings = find_table_problems(world)
        assert wrong(findings) == {}
        assert {finding.hint for finding in findings if finding.level == "ok"} == {""}
        assert of(findings, "ledger-books").message == "the books balance: 2 messages read, 2 in batches, 0 rejected"

    def test_order(self, world: World) -> None:
        """Findings are ordered by what they are about, and every code stands under one heading."""
        abouts = [finding.about for finding in find_table_problems(world)]
        assert abouts == sorted(abouts, key=list(CODES).index)

    def test_before_the_first_run(self, tmp_path: Path, clock: ManualClock) -> None:
        """A missing ledger is a warning that says what creates it; a missing depot is an error."""
        world = World(tmp_path, clock)
        assert wrong(find_table_problems(world)) == {"ledger": "warning"}
        shutil.rmtree(world.depot)
        assert wrong(find_table_problems(world)) == {"depot": "error", "ledger": "warning"}


class TestDepot:
    def test_feed_off(self, world: World) -> None:
        """A depot without a change feed is told apart, and is no fault, even if its last version only compacts."""
        DeltaTable(world.depot).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
        DeltaTable(world.depot).optimize.compact()
        finding = of(find_table_problems(world), "depot-feed")
        assert (finding.level, "only versions that append" in finding.message) == ("ok", True)
        assert "depot-readable" not in wrong(find_table_problems(world))

    def test_feed_switched_on_later(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """Where the feed begins later, a new ledger can begin before it all the same."""
        world = World(tmp_path, clock)
        world.depot = str(tmp_path / "bare")
        write_deltalake(world.depot, table([message()]))
        DeltaTable(world.depot).alter.set_table_properties(FEED)
        finding = of(find_table_problems(world), "depot-readable")
        assert (finding.level, "versions 0 to 1 can be read" in finding.message) == ("ok", True)
        assert wrong(find_table_problems(world))["depot-retention"] == "warning"

    def test_versions_that_are_gone(self, world: World) -> None:
        """A version that must be read next and is gone is an error; one that was read already is none."""
        world.publish([message("c", NOW + 2 * SECOND, NOW + 2 * SECOND)])
        DeltaTable(world.depot).optimize.compact()
        DeltaTable(world.depot).create_checkpoint()
        forget(world.depot, last_version=2)
        assert of(find_table_problems(world), "depot-readable").level == "ok"
        forget(world.depot, last_version=3)
        finding = of(find_table_problems(world), "depot-readable")
        assert (finding.level, "version 3 comes next" in finding.message) == ("error", True)

    def test_missing_file(self, world: World) -> None:
        """When a data file of the version that must be read next is missing, the doctor and the run name it."""
        world.publish([message("c", NOW + 2 * SECOND, NOW + 2 * SECOND)])
        entry = Path(world.depot, "_delta_log", f"{DeltaTable(world.depot).version():020}.json").read_text("utf-8")
        [name] = [action["add"]["path"] for action in map(json.loads, entry.splitlines()) if "add" in action]
        Path(world.depot, name).unlink()
        finding = of(find_table_problems(world), "depot-readable")
        assert (finding.level, name in finding.message) == ("error", True)
        with pytest.raises(WindrowError, match=name) as failed:
            world.runner(EngineFactory("embedded"), max_retries=0).once()
        assert 'start_from = "version:4"' in failed.value.hint

    @pytest.mark.parametrize(("setting", "level"), [("error", "error"), ("ignore", "ok")])
    def test_changed_rows(self, world: World, setting: str, level: str) -> None:
        """Deleted rows are reported if the version is still unread, because the next run stops there."""
        DeltaTable(world.depot).delete("type = 'a'")
        finding = of(find_table_problems(world, on_depot_change=setting), "depot-changes")
        assert (finding.level, "version 3" in finding.message) == (level, True)

    def test_columns(self, tmp_path: Path, clock: ManualClock) -> None:
        """A depot without the columns of messages, or with types that cannot be cast, is an error."""
        world = World(tmp_path, clock)
        world.depot = str(tmp_path / "other")
        write_deltalake(world.depot, pa.table({"key": ["k"], "type": ["a"]}), configuration=FEED)
        finding = of(find_table_problems(world), "depot-columns")
        assert (finding.level, "event_time, received_at" in finding.message) == ("error", True), finding.message
        world.depot = str(tmp_path / "lists")
        lists = pa.table({name: [["x"]] for name in ("key", "type", "event_time", "received_at")})
        write_deltalake(world.depot, lists, configuration=FEED)
        finding = of(find_table_problems(world), "depot-columns")
        assert (finding.level, "WINDROW-MESSAGES" in finding.message) == ("error", True), finding.message

    def test_columns_in_another_case(self, tmp_path: Path, clock: ManualClock) -> None:
        """Column names that differ only in case are accepted, as in a run."""
        world = World(tmp_path, clock)
        world.depot = str(tmp_path / "own")
        write_deltalake(world.depot, table([message()]).rename_columns({"key": "KEY"}), configuration=FEED)
        finding = of(find_table_problems(world), "depot-columns")
        assert finding.level == "ok"

    @pytest.mark.parametrize(
        ("mapping", "level", "says"),
        [
            ({"key": "device"}, "ok", "mapped by [depot.columns]: key"),
            ({"key": "gadget"}, "error", "WINDROW-EXPRESSION"),
            ({"key": "soundex(device)"}, "error", "without Spark the mapping does not run"),
        ],
    )
    def test_mapped(self, tmp_path: Path, clock: ManualClock, mapping: dict[str, str], level: str, says: str) -> None:
        """A mapping makes messages of other columns; one that does not fit, or not run on the engine, is an error."""
        world = World(tmp_path, clock)
        world.depot = str(tmp_path / "own")
        rows = table([message()])
        renamed = rows.rename_columns(["device" if name == "key" else name for name in rows.column_names])
        write_deltalake(world.depot, renamed, configuration=FEED)
        assert of(find_table_problems(world), "depot-columns").level == "error"
        finding = of(find_table_problems(world, depot_columns=mapping), "depot-columns")
        assert (finding.level, says in finding.message) == (level, True), finding.message

    def test_raw(self, world: World, tmp_path: Path) -> None:
        """A raw depot needs a format, and columns that the mapping makes of its fields."""
        world.depot = str(tmp_path / "raw")
        create_depot(world.depot, None)
        assert "WINDROW-SETTINGS" in of(find_table_problems(world), "depot-columns").message
        chosen = {"type": "csv", "fields": {"key": "string", "type": "string", "ts": "timestamp[us]"}}
        assert "event_time" in of(find_table_problems(world, format=chosen), "depot-columns").message
        finding = of(find_table_problems(world, format=chosen, depot_columns={"event_time": "ts"}), "depot-columns")
        assert (finding.level, finding.message) == ("ok", "raw chunks of csv")

    @pytest.mark.parametrize(("runs_on", "level"), [("embedded", "error"), ("spark", "warning")])
    def test_raw_mapped_on_spark(self, world: World, tmp_path: Path, runs_on: str, level: str) -> None:
        """The mapping of a raw depot that only Spark runs stops the embedded engine, and on Spark is a warning."""
        world.depot = str(tmp_path / "raw")
        create_depot(world.depot, None)
        chosen = {"type": "csv", "fields": {"name": "string", "type": "string", "ts": "timestamp[us]"}}
        mapping = {"key": "soundex(name)", "event_time": "ts", "received_at": "ts"}
        finding = of(find_table_problems(world, engine=runs_on, format=chosen, depot_columns=mapping), "depot-columns")
        assert (finding.level, "without Spark the mapping does not run" in finding.message) == (level, True), (
            finding.message
        )

    @pytest.mark.parametrize("mapping", [{}, {"key": "source"}], ids=["own", "mapped"])
    def test_a_ledger(self, world: World, tmp_path: Path, mapping: dict[str, str]) -> None:
        """A ledger has the columns of messages, but as a depot it is refused, as a run refuses it."""
        world.depot, world.ledger = world.ledger, str(tmp_path / "new")
        finding = of(find_table_problems(world, depot_columns=mapping), "depot-columns")
        assert (finding.level, "is a ledger, not a depot" in finding.message) == ("error", True), finding.message

    def test_catalog_name(self, world: World) -> None:
        """A catalog table with an unknown path cannot be checked, which is only a warning."""
        world.depot = "main.plant.depot"
        assert of(find_table_problems(world), "depot").level == "warning"

    def test_another_depot(self, world: World, tmp_path: Path, clock: ManualClock) -> None:
        """A ledger of another depot is an error with the code of the exception that run raises."""
        (tmp_path / "second").mkdir()
        world.depot = World(tmp_path / "second", clock).depot
        assert "WINDROW-DEPOT-MISMATCH" in of(find_table_problems(world), "ledger").message


def forget(location: str, last_version: int) -> None:
    """Delete the oldest commits from a log, as its clean-up does."""
    for version in range(last_version + 1):
        (Path(location) / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)


class TestFeatures:
    def test_column_mapping(self, world: World) -> None:
        """Column mapping bars delta-rs from the change feed only: that is found where versions are unread."""
        log = Path(world.depot) / "_delta_log"
        actions = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
        [described] = [action["metaData"] for action in actions if "metaData" in action]
        fields = json.loads(described["schemaString"])
        for number, field in enumerate(fields["fields"], 1):
            field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        described["schemaString"] = json.dumps(fields)
        described["configuration"]["delta.columnMapping.mode"] = "name"
        upgrade(world.depot, "columnMapping", {"metaData": described})
        finding = of(find_table_problems(world), "depot-readable")
        assert (finding.level, "Column mapping" in finding.message) == ("error", True), finding.message
        assert of(find_table_problems(world, engine="spark"), "depot-readable").level == "warning"

    def test_unknown_feature(self, world: World) -> None:
        """A table that delta-rs does not even open is an error that names the feature."""
        upgrade(world.depot, "telepathy")
        finding = of(find_table_problems(world), "depot")
        assert finding.level == "error"
        assert "WINDROW-TABLE-UNREADABLE" in finding.message
        assert "telepathy" in finding.message


def upgrade(location: str, feature: str, more: Row | None = None) -> None:
    """Add a commit that gives a table a feature that its readers must know, with further actions."""
    writer = sorted({"appendOnly", "changeDataFeed", "invariants", feature})
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": writer, "readerFeatures": [feature]}
    log = Path(location) / "_delta_log" / f"{DeltaTable(location).version() + 1:020}.json"
    log.write_text("\n".join(json.dumps(action) for action in ({"protocol": protocol}, *([more] if more else []))))


def test_the_tables_are_not_touched(world: World) -> None:
    """Every file of the tables stays as it was."""
    files = [path for path in Path(world.depot).parent.rglob("*") if path.is_file()]
    before = [path.stat().st_mtime_ns for path in files]
    find_table_problems(world)
    assert [path.stat().st_mtime_ns for path in files] == before
    assert len([path for path in Path(world.depot).parent.rglob("*") if path.is_file()]) == len(files)


class TestLedger:
    def test_books(self, world: World) -> None:
        """A ledger that lost rows does not balance, which is an error that names verify."""
        DeltaTable(world.ledger).delete("state = 'open'")
        finding = of(find_table_problems(world), "ledger-books")
        assert (finding.level, "windrow verify" in finding.hint) == ("error", True)
        assert finding.message == "the books do not balance: 2 messages read, 0 in batches, 0 rejected"

    def test_history(self, world: World) -> None:
        """A history that lost a microbatch without messages is found by its number."""
        world.runner(EngineFactory("embedded")).tick(NOW + HOUR)
        assert of(find_table_problems(world), "ledger-books").level == "ok"
        DeltaTable(world.ledger).delete("state = 'microbatch' AND kind = 'tick'")
        assert (
            "the history has 1 microbatches, the progress row counts 2"
            in of(find_table_problems(world), "ledger-books").message
        )

    def test_damaged(self, world: World) -> None:
        """A ledger without its progress row, or a table that is none, is an error."""
        DeltaTable(world.ledger).delete("id = 'progress'")
        assert "0 progress rows" in of(find_table_problems(world), "ledger").message
        shutil.rmtree(world.ledger)
        shutil.copytree(world.depot, world.ledger)
        assert "not a ledger" in of(find_table_problems(world), "ledger").message

    def test_retention(self, world: World) -> None:
        """`retention` does not change an existing ledger: a difference is a warning."""
        assert of(find_table_problems(world, retention="2160h"), "ledger-retention").level == "ok"
        finding = of(find_table_problems(world, retention="30d"), "ledger-retention")
        assert (finding.level, "for 90d, but the setting retention is 30d" in finding.message) == ("warning", True)

    def test_rules(self, world: World) -> None:
        """Rules that the next run changes are named."""
        finding = of(find_table_problems(world, rules={"window": "20s"}), "ledger-rules")
        assert "window from 10s to 20s" in finding.message
        assert "max_delay" not in finding.message

    def test_too_much(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Many files, or many commits, are warnings."""
        monkeypatch.setattr(of_ledger, "MANY_FILES", 1)
        monkeypatch.setattr(of_ledger, "MANY_COMMITS", 1)
        assert wrong(find_table_problems(world)) == {"ledger-files": "warning", "ledger-log": "warning"}


class TestClocks:
    def test_commits_of_the_future(self, world: World) -> None:
        """A clock that is behind the latest commits is a warning for each table."""
        commit = DeltaTable(world.depot).history(1)[0]["timestamp"] * 1_000
        levels = {view.level for view in find_table_problems(world, now=commit - HOUR) if view.code == "clock-commits"}
        assert levels == {"warning"}
        assert {view.level for view in find_table_problems(world) if view.code == "clock-commits"} == {"ok"}

    def test_stamps_of_the_future(self, world: World) -> None:
        """Messages stamped further ahead of the wall clock than max_clock_skew are a warning that says by how much."""
        world.publish([message("c", NOW, written() + 3 * HOUR)])
        finding = of(find_table_problems(world), "clock-stamps")
        assert (finding.level, "up to 3h ahead" in finding.message) == ("warning", True)
        assert "clock-stamps" not in wrong(find_table_problems(world, max_clock_skew="3h"))

    def test_one_clock_for_all(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """One clock for all is fine until most of the messages that are too old are so only because of others."""
        monkeypatch.setattr(of_ledger, "warnings_of", partial(of_ledger.warnings_of, min_count=1))
        assert "clock-shared" not in {view.code for view in find_table_problems(world)}
        world.runner(EngineFactory("embedded")).flush()
        world.publish([message(key="late", event_time=NOW - HOUR, received_at=NOW - HOUR)])
        world.runner(EngineFactory("embedded")).once()
        finding = of(find_table_problems(world), "clock-shared")
        assert (finding.level, "1 of them only" in finding.message, "Map source" in finding.hint) == (
            "warning",
            True,
            True,
        )


def test_a_check_that_fails(world: World) -> None:
    """Each check that fails on a broken file is a finding itself, and the other checks run."""
    for file in Path(world.ledger).glob("state=microbatch/*/*.parquet"):
        file.unlink()
    findings = find_table_problems(world)
    failed = [finding for finding in findings if finding.code == "check"]
    assert [(finding.level, " ".join(finding.message.split()[:5])) for finding in failed] == [
        ("error", "the check of books failed:"),
        ("error", "the check of warnings failed:"),
    ]
    assert of(findings, "ledger-retention").level == "ok"


@pytest.mark.parametrize("harm", ["gone", "another size"])
@pytest.mark.parametrize("role", ["depot", "ledger"])
def test_data_files(world: World, role: str, harm: str) -> None:
    """A data file of a table that is gone, or has another size than the log says, is an error, and no bug to report."""
    place = Path(world.ledger, "state=microbatch", "folded=false") if role == "ledger" else Path(world.depot)
    file = next(place.glob("*.parquet"))
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b"1")
    findings = [finding for finding in find_table_problems(world) if finding.level == "error"]
    assert file.name in next(finding.message for finding in findings if finding.code == "storage-files")
    assert not any("please report" in finding.hint for finding in findings)

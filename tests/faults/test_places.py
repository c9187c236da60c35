"""Paths: what is no table there is said, and every character that a path may have works on both engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.cli.conftest import Command
from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import assert_whole, error_lines, run
from tests.messages import log, message, table
from windrow import Producer, RawProducer
from windrow import run as windrow_run
from windrow.errors import SettingsError
from windrow.settings.settings import Settings
from windrow.testing import Harness
from windrow.topology import Microbatch, Topology
from windrow.topology.verify import verify_topology

ODD = 'it\'s a "path" `with` 100% ünï \U0001f69c & {more} = $HOME; *,+@~:'


def absent(path: Path) -> None:
    assert not path.exists()


def empty_directory(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.write_text("no table")


def below_a_file(path: Path) -> None:
    path.parent.joinpath("file").write_text("no table")
    path.symlink_to("file/below")


def parquet_files(path: Path) -> None:
    path.mkdir()
    pq.write_table(table([message()]), path / "part-0.parquet")


def dangling_link(path: Path) -> None:
    path.symlink_to("nowhere/at/all")


def empty_log(path: Path) -> None:
    (path / "_delta_log").mkdir(parents=True)


def broken_log(path: Path) -> None:
    empty_log(path)
    (path / "_delta_log" / f"{0:020}.json").write_text("this is no log")


def foreign_table(path: Path) -> None:
    write_deltalake(path, table([message()]).select(["key", "payload"]))


class TestDepot:
    @pytest.mark.parametrize(
        ("make", "code"),
        [
            (absent, "WINDROW-TABLE-MISSING"),
            (empty_directory, "WINDROW-TABLE-MISSING"),
            (parquet_files, "WINDROW-TABLE-MISSING"),
            (empty_log, "WINDROW-TABLE-MISSING"),
            (dangling_link, "WINDROW-TABLE-MISSING"),
            (a_file, "WINDROW-TABLE-UNREADABLE"),
            (broken_log, "WINDROW-TABLE-UNREADABLE"),
        ],
    )
    def test_none_there(self, windrow: Command, tmp_path: Path, make: Callable[[Path], None], code: str) -> None:
        """Where there is no depot, `run` ends with 3 and a code, in one or two lines that name the path; it makes no
        batches.
        """
        make(tmp_path / "place")
        result = windrow("run", "--depot", "place", "--ledger", "ledger", "--json")
        assert_said(result, 3, code, "place")

    @pytest.mark.parametrize(
        ("make", "code"),
        [
            (parquet_files, "WINDROW-INCOMPATIBLE-TABLE"),
            (a_file, "WINDROW-TABLE-UN"),
            (broken_log, "WINDROW-TABLE-UNREADABLE"),
            (dangling_link, "WINDROW-TABLE-UNWRITABLE"),
        ],
    )
    def test_none_made_there(self, windrow: Command, tmp_path: Path, make: Callable[[Path], None], code: str) -> None:
        """`ingest` makes no depot among files that are not its own, over a file or behind a link to nowhere; what was
        there stays.
        """
        make(tmp_path / "place")
        before = {path.name: path.is_file() and path.read_bytes() for path in (tmp_path / "place").rglob("*")}
        pq.write_table(table([message()]), tmp_path / "messages.parquet")
        result = windrow("ingest", "messages.parquet", "--depot", "place", "--json")
        assert_said(result, 3, code, "place")
        assert before == {path.name: path.is_file() and path.read_bytes() for path in (tmp_path / "place").rglob("*")}


class TestLedger:
    @pytest.mark.parametrize(
        ("make", "code"),
        [
            (parquet_files, "WINDROW-INCOMPATIBLE-TABLE"),
            (foreign_table, "WINDROW-INCOMPATIBLE-TABLE"),
            (a_file, "WINDROW-TABLE-UNREADABLE"),
            (broken_log, "WINDROW-TABLE-UNREADABLE"),
            (dangling_link, "WINDROW-TABLE-UNWRITABLE"),
            (below_a_file, "WINDROW-TABLE-"),
        ],
    )
    def test_none_there(self, windrow: Command, tmp_path: Path, make: Callable[[Path], None], code: str) -> None:
        """Where something else is, `run` makes no ledger and ends with 3, a code and the path."""
        World(tmp_path, ManualClock()).publish([message()])
        make(tmp_path / "place")
        result = windrow("run", "--depot", "depot", "--ledger", "place", "--json")
        assert_said(result, 3, code, "place")

    @pytest.mark.parametrize("make", [absent, empty_directory, empty_log])
    def test_made(self, windrow: Command, tmp_path: Path, make: Callable[[Path], None]) -> None:
        """Where there is nothing, `run` makes the ledger."""
        World(tmp_path, ManualClock()).publish([message()])
        make(tmp_path / "place")
        assert windrow("run", "--depot", "depot", "--ledger", "place", "--json").json()["message_count"] == 1

    @pytest.mark.parametrize("command", ["status", "verify", "show"])
    @pytest.mark.parametrize(
        ("make", "code"),
        [
            (absent, "WINDROW-TABLE-MISSING"),
            (parquet_files, "WINDROW-TABLE-MISSING"),
            (a_file, "WINDROW-TABLE-UNREADABLE"),
            (broken_log, "WINDROW-TABLE-UNREADABLE"),
            (foreign_table, "WINDROW-INCOMPATIBLE-TABLE"),
        ],
    )
    def test_looked_at(
        self, windrow: Command, tmp_path: Path, command: str, make: Callable[[Path], None], code: str
    ) -> None:
        """The commands that look say the same in one or two lines."""
        make(tmp_path / "place")
        assert_said(windrow(command, "--ledger", "place"), 3, code, "place")


RAW_COLUMNS = {"key": "b", "type": "'t'", "event_time": "timestamp_micros(a)", "received_at": "timestamp_micros(a)"}


def copying(output: str = "copies") -> Topology:
    """Return a topology that copies what arrives to an output, and counts it."""
    topology = Topology("copying", depots=["a"], states="copying", outputs={"copies": output})
    topology.state("counts", key="payload STRING", value="times BIGINT")

    @topology.function
    def copy(microbatch: Microbatch) -> None:
        rows = microbatch.rows("a").select(["payload"])
        microbatch.state("counts").combine(rows, times="count")
        microbatch.append("copies", rows)

    return topology


class TestCharacters:
    @pytest.mark.slow_on_spark
    def test_odd(self, tmp_path: Path, engine: EngineFactory, spark: object) -> None:
        """Blanks, quotes, backticks, percent signs, letters of every script and what shells and SQL take for their own
        are ordinary in a path, on each engine and when the other one goes on.
        """
        (tmp_path / ODD).mkdir()
        world = World(tmp_path / ODD, ManualClock())
        world.publish(*log(versions=2, size=5))
        run(world, engine)
        world.publish(*log(versions=1, size=5, seed=2))
        run(world, EngineFactory("embedded") if engine.name == "spark" else EngineFactory("spark", spark))
        assert_whole(world)

    def test_links(self, tmp_path: Path, full: World, embedded: EngineFactory) -> None:
        """A table behind a symbolic link is the table."""
        run(full, embedded)
        (tmp_path / "to-depot").symlink_to(full.depot)
        (tmp_path / "to-ledger").symlink_to(full.ledger)
        version = DeltaTable(full.ledger).version()
        full.depot, full.ledger = str(tmp_path / "to-depot"), str(tmp_path / "to-ledger")
        assert run(full, embedded) == 0
        full.publish(log(versions=1, seed=7)[0])
        assert run(full, embedded) == 30
        assert full.version() == version + 1
        assert_whole(full)

    @pytest.mark.parametrize("name", ["my project", "日本 ü", "100% {x}", "a%zz", "a'b\"c`d"])
    def test_daily_way(self, tmp_path: Path, windrow: Command, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Whatever the directory of a project is called, messages go all the way: commands, a raw depot, a topology."""
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert windrow("init").status == 0
        with Producer("data/depot", "p") as producer:
            for at in (1, 2, 3):
                producer.send(key="k", type=f"t{at}", event_time=at, payload="x")
        for command in ("run", "verify", "replay", "tune", "doctor"):
            result = windrow(command, *(["--engine", "embedded"] if command == "run" else []))
            assert result.status == 0, result.err
        assert windrow("status", "--json").json()["totals"]["message_count"] == 3
        harness = Harness(copying(), Path("topology"))
        harness.append([{"payload": "1"}])
        harness.run()
        assert verify_topology(harness.topology, Settings(engine="embedded"), replay=True).differences == ()
        with RawProducer("raw", "s") as raw:
            raw.send(b"1,2\n", last=True).result(60)
        values = {"depot": "raw", "ledger": "raw-ledger", "engine": "embedded", "depot_columns": RAW_COLUMNS}
        chosen = Settings(
            **values, format={"type": "csv", "has_header": False, "fields": {"a": "int64", "b": "string"}}
        )
        assert windrow_run(chosen).total("message_count") == 1

    @pytest.mark.parametrize("name", ["a^b", "a|b"])
    def test_panic(self, tmp_path: Path, name: str) -> None:
        """A path at which delta-rs would panic is refused at once, before a message waits for it."""
        with pytest.raises(SettingsError, match="readers misread"):
            Producer(str(tmp_path / name), "p")
        with pytest.raises(SettingsError, match="readers misread"):
            copying(str(tmp_path / name))

    @pytest.mark.parametrize("name", ["a#b", "a?b", "a[b", "a]b", "a%20b", "a\\b", "a\nb", "a^b", "a|b"])
    def test_misread(self, tmp_path: Path, embedded: EngineFactory, name: str) -> None:
        """What Delta's readers would take for something else than a path, and so for another table, is refused."""
        with pytest.raises(SettingsError, match="readers misread"):
            embedded.settings(str(tmp_path / name / "depot"), str(tmp_path / "ledger"))
        with pytest.raises(SettingsError, match="ledger"):
            embedded.settings(str(tmp_path / "depot"), str(tmp_path / name))


def assert_said(result: object, status: int, code: str, name: str) -> None:
    """The command ended so, with one or two lines that name the code and the place."""
    lines = error_lines(result.err)
    assert (result.status, result.out) == (status, "")
    assert lines[0].startswith(code)
    assert name in lines[0]
    assert len(lines) <= 2

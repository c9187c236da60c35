"""Commands of a topology given as module:name."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command, publish
from tests.messages import SECOND, message

MODULE = """
from windrow.topology import Microbatch, Topology

topology = Topology("seen", depots={"messages": "data/depot"}, states="data/seen")
topology.state("seen", value="count BIGINT", initial={"count": 0})
topology.event("hour", every="1h")


@topology.function
def count_messages(microbatch: Microbatch) -> None:
    microbatch.state("seen").combine(microbatch.rows("messages"), count="count")


something = 1
"""


@pytest.fixture
def counting(filled: Command, tmp_path: Path) -> Iterator[Command]:
    """A depot with messages, and a module with a topology."""
    (tmp_path / "seen.py").write_text(MODULE, encoding="utf-8")
    yield filled
    sys.modules.pop("seen", None)
    sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


class TestRun:
    def test_once(self, counting: Command) -> None:
        """A run says what it read, a second one finds nothing, and neither touches the ledger of the batcher."""
        before = counting("status", "--json").json()
        result = counting("run", "seen:topology")
        assert result.status == 0
        assert "message" in result.out
        assert "Nothing new, nothing due." in counting("run", "seen:topology").out
        after = counting("status", "--json").json()
        assert after["ledger"] == before["ledger"]

    @pytest.mark.parametrize(
        ("named", "reason"),
        [
            ("seen", "is not module:name"),
            ("nothere:topology", "cannot be imported"),
            ("seen:nothing", "does not exist"),
            ("seen:something", "is a int, not a Topology"),
        ],
    )
    def test_refused(self, counting: Command, named: str, reason: str) -> None:
        """What names no topology is refused, with what would."""
        failed = counting("run", named)
        assert failed.status == 2
        assert reason in failed.err
        assert "WINDROW-TOPOLOGY" in failed.err

    @pytest.mark.parametrize("flags", [["--ledger", "x"], ["--depot", "main.bronze.m"], ["--dry-run"]])
    def test_flags_of_the_batcher(self, counting: Command, flags: list[str]) -> None:
        """Flags that mean nothing for a topology are refused."""
        failed = counting("run", "seen:topology", *flags)
        assert failed.status == 2
        assert flags[0] in failed.err


def test_deleted_rows(counting: Command, tmp_path: Path) -> None:
    """Where rows of the depot were deleted, the run of a topology stops, says how to go on, and goes on so."""
    counting("run", "seen:topology")
    DeltaTable(tmp_path / "data" / "depot").delete()
    stopped = counting("run", "seen:topology")
    version = str(DeltaTable(tmp_path / "data" / "depot").version())
    assert (stopped.status, f"--skip-version DEPOT:{version}" in stopped.err) == (3, True)
    for wrong in ("last", "0", f"others:{version}"):
        refused = counting("run", "seen:topology", "--skip-version", wrong)
        assert (refused.status, "--skip-version" in refused.err) == (2, True)
    assert counting("run", "seen:topology", "--skip-version", f"messages:{version}").status == 0
    assert counting("run", "seen:topology").status == 0


def test_pause_and_resume(counting: Command) -> None:
    """A paused topology reads nothing until it is resumed; the status says so."""
    assert "is paused" in counting("pause", "seen:topology").out
    assert "is paused" in counting("run", "seen:topology").out
    assert "nothing is read" in counting("status", "seen:topology").out
    assert "no longer paused" in counting("resume", "seen:topology").out
    assert "read" in counting("run", "seen:topology").out


def test_status(counting: Command) -> None:
    """The status says how far each depot is read, how many rows a state has, when events are due, what is set."""
    assert counting("status", "seen:topology").status == 2
    counting("run", "seen:topology")
    counting("settings", "seen:topology", "max_messages=7")
    document = counting("status", "seen:topology", "--json").json()
    assert (document["states"], document["options"]) == ({"seen": 1}, {"max_messages": "7"})
    assert list(document["events_due_at"]) == ["hour"]
    [depot] = document["depots"]
    assert (depot["name"], depot["versions_waiting"]) == ("messages", 0)
    output = counting("status", "seen:topology").out
    assert "max_messages = 7" in output
    assert "hour is due" in output
    assert "last microbatches" in output
    assert "do not apply to a topology" in counting("status", "seen:topology", "--sources").err


def test_alarms(counting: Command, tmp_path: Path) -> None:
    """Conditions on what a topology has end the status with 1 when they hold; others are refused by name."""
    counting("run", "seen:topology")
    flags = [
        word for condition in ("lag>5m", "lag_versions>0", "rejected>0", "paused") for word in ("--fail-if", condition)
    ]
    assert counting("status", "seen:topology", "--json", *flags).json()["failed"] == []
    publish(tmp_path, message("b", 161 * SECOND, 161 * SECOND))
    counting("ingest", "messages.parquet")
    counting("pause", "seen:topology")
    failed = counting("status", "seen:topology", *flags)
    assert (failed.status, failed.err) == (1, "lag_versions>0 holds: lag_versions is 1\npaused\n")
    assert "1 message in 1 version wait" in failed.out
    refused = counting("status", "seen:topology", "--fail-if", "open_batches>3")
    assert (refused.status, "a topology has no open_batches" in refused.err) == (2, True)


@pytest.mark.parametrize("more", [[], ["--history", "9"]])
def test_names_of_a_catalog(counting: Command, tmp_path: Path, more: list[str]) -> None:
    """Tables by name are refused without Spark, which alone knows where they are."""
    (tmp_path / "seen.py").write_text(MODULE.replace('"data/seen"', '"main.seen.states"'), encoding="utf-8")
    failed = counting("status", "seen:topology", *more, "--engine", "embedded")
    assert (failed.status, "WINDROW-ENGINE" in failed.err) == (2, True)


def test_tick(counting: Command) -> None:
    """A tick does what is due; a topology has no clocks that a tick could raise to a moment."""
    counting("run", "seen:topology")
    assert "Nothing due." in counting("tick", "seen:topology").out
    refused = counting("tick", "seen:topology", "--to", "2100-01-01T00:00:00Z")
    assert refused.status == 2
    assert "a topology has no clocks to raise" in refused.err


def test_show_and_replay(counting: Command, tmp_path: Path) -> None:
    """A state is shown, as it is, after a microbatch, or of a key; a replay finds the same states."""
    module = (tmp_path / "seen.py").read_text(encoding="utf-8")
    of_types = """
topology.state("types", key="type STRING", value="times BIGINT")
@topology.function
def count_types(microbatch: Microbatch) -> None:
    microbatch.state("types").combine(microbatch.rows("messages"), times="count")
"""
    (tmp_path / "seen.py").write_text(module + of_types, encoding="utf-8")
    counting("run", "seen:topology")

    def shown(*flags: str) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = counting("show", "seen:topology", "--state", *flags, "--json").json()
        return rows

    first, *_ = shown("types")
    assert shown("types", "--key", str(first["type"])) == shown("types", "--key", json.dumps({"type": first["type"]}))
    assert shown("types", "--key", str(first["type"])) == [first]
    assert shown("types", "--microbatch", "0") == []
    assert "no such row" in counting("show", "seen:topology", "--state", "types", "--key", "nobody").out
    assert counting("show", "seen:topology", "--state", "none").status == 2
    assert counting("show", "seen:topology", "--state", "seen", "--key", "x").status == 2
    assert "not JSON" in counting("show", "seen:topology", "--state", "types", "--key", "{type").err
    assert "a topology is always replayed whole" in counting("replay", "seen:topology", "--max-delay", "1m").err
    assert "the states are equal" in counting("replay", "seen:topology").out
    assert "--continue needs --into" in counting("replay", "seen:topology", "--continue").err
    assert "--continue and --ticks merged need a topology" in counting("replay", "--ticks", "merged").err
    result = counting("replay", "seen:topology", "--ticks", "merged", "--into", "data/again", "--continue")
    assert result.status == 0
    assert "Then 0 microbatches of newer rows." in result.out


def test_depots(counting: Command) -> None:
    """Status tells how far the batcher's depot is read, and each depot of a topology."""
    counting("run", "seen:topology")
    [own] = counting("status", "--json").json()["depots"]
    [other] = counting("status", "seen:topology", "--json").json()["depots"]
    assert (own["name"], other["name"]) == ("depot", "messages")
    assert own["read_version"] == other["read_version"] == own["version"]
    assert own.keys() == other.keys()
    DeltaTable("data/depot").alter.set_table_properties({"delta.appendOnly": "true"})
    [after] = counting("status", "seen:topology", "--json").json()["depots"]
    assert (after["version"] > own["version"], after["versions_waiting"]) == (True, 0)
    assert "messages" in counting("status", "seen:topology").out


def test_history(counting: Command) -> None:
    """The history shows the last microbatches, of the batcher or of a topology."""
    counting("run", "seen:topology")
    counting("pause", "seen:topology")
    rows = counting("status", "--history", "20", "seen:topology", "--json").json()["microbatches"]
    assert rows[-1]["kind"] == "pause"
    assert len(counting("status", "seen:topology", "--history", "1", "--json").json()["microbatches"]) == 1
    assert "pause" in counting("status", "--history", "20", "seen:topology").out
    assert counting("status", "--history", "20", "--json").json()["microbatches"][0]["kind"] == "data"


def test_rollback(counting: Command) -> None:
    """A rollback takes back what came after a microbatch, and the next run reads it again."""
    counting("run", "seen:topology")
    assert "Rolled back to microbatch 0" in counting("rollback", "seen:topology", "--to-microbatch", "0").out
    assert counting("status", "seen:topology", "--json").json()["states"] == {"seen": 0}
    counting("run", "seen:topology")
    assert counting("status", "seen:topology", "--json").json()["states"] == {"seen": 1}
    missing = counting("rollback", "seen:topology", "--to-microbatch", "99")
    assert (missing.status, "WINDROW-NOT-FOUND" in missing.err) == (2, True)


@pytest.mark.parametrize("options", [["max_messages"], ["max_messages=none"], ["most=3"]])
def test_options_refused(counting: Command, options: list[str]) -> None:
    """An option that is none, or has a value that is none, is refused."""
    failed = counting("settings", "seen:topology", *options)
    assert failed.status == 2
    assert json.loads(counting("run", "seen:topology", "--json").out)["paused"] is False


@pytest.mark.parametrize(
    "command", [["run"], ["tick", "--all"], ["status"], ["verify"], ["maintain", "--table", "ledger"]]
)
def test_the_table_of_states_is_no_ledger(counting: Command, command: list[str]) -> None:
    """Commands of the batcher refuse the table of states; `maintain` looks after it."""
    counting("run", "seen:topology")
    result = counting(*command, "--ledger", "data/seen")
    assert result.status == (0 if command[0] == "maintain" else 3), result.err
    assert "Traceback" not in result.err


def test_verify(counting: Command) -> None:
    """The books of a topology balance, also against a replay, until somebody loses a microbatch."""
    counting("run", "seen:topology")
    result = counting("verify", "seen:topology", "--replay", "--strict")
    assert result.status == 0, result.out
    assert "no difference" in result.out
    assert "depot messages, versions 0 to" in result.out
    report = counting("verify", "seen:topology", "--json").json()
    assert (report["ok"], report["complete"], report["states"][0]["row_count"]) == (True, True, 1)
    table = DeltaTable("data/seen")
    table.delete("state = 'microbatch' AND kind = 'data'")
    failed = counting("verify", "seen:topology")
    assert failed.status == 1
    assert "the history has each microbatch" in failed.out
    assert "do not apply to a topology" in counting("verify", "seen:topology", "--all").err
    assert "--replay needs a topology" in counting("verify", "--replay").err


def test_maintain(counting: Command) -> None:
    """The table of states and each depot are maintained, or one of both kinds."""
    counting("run", "seen:topology")
    both = counting("maintain", "seen:topology", "--json").json()["tables"]
    assert [table["table"] for table in both] == ["ledger", "depot"]
    assert both[0]["location"] == "data/seen"
    only = counting("maintain", "seen:topology", "--table", "ledger", "--dry-run", "--json").json()["tables"]
    assert [table["table"] for table in only] == ["ledger"]
    assert counting("status", "seen:topology", "--json").json()["states"] == {"seen": 1}


def test_watch(counting: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch prints a line each time, and ends by Ctrl-C with status 0."""
    counting("run", "seen:topology")
    looks = iter([False, True])

    def wait(_: object, microseconds: int) -> bool:
        if next(looks) and microseconds:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr("windrow.runtime.wall_clock.WallClock.wait", wait)
    result = counting("status", "seen:topology", "--watch", "--interval", "1s")
    assert result.status == 0
    [first, second] = result.out.splitlines()
    assert "microbatch 1; nothing waits; seen 1 row" in first
    assert first.split("  ")[1] == second.split("  ")[1]


def test_doctor(counting: Command, tmp_path: Path) -> None:
    """The doctor examines each depot and the table of states, before the first run and after; an error ends with 1."""

    def examined() -> dict[str, str]:
        findings = counting("doctor", "seen:topology", "--json").json()["findings"]
        assert not [finding for finding in findings if finding["code"] == "check"]
        return {finding["code"]: f"{finding['level']} {finding['message']}" for finding in findings}

    before = examined()
    assert before["ledger"].startswith("warning there is no ledger at")
    assert before["depot"].startswith("ok messages: data/depot")
    counting("run", "seen:topology")
    counting("pause", "seen:topology")
    after = examined()
    assert after["ledger"].startswith("ok data/seen")
    assert after["storage-files"].startswith("ok messages: depot: all")
    assert after["ledger-paused"].startswith("warning")
    assert after["depot-readable"].startswith("ok messages: depot versions 0 to 1")
    shutil.rmtree(tmp_path / "data" / "depot")
    failed = counting("doctor", "seen:topology")
    assert failed.status == 1
    assert "messages: WINDROW-TABLE-MISSING" in failed.out

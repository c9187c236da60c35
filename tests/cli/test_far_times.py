"""Times outside the years 1 to 9999, which Python's datetime does not have: the depot may hold them, batches do not."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command, publish
from tests.messages import SECOND, message

BEFORE, AFTER = -62_167_219_200_000_000, 253_402_300_800_000_000  # the years 0 and 10000
FAR = [BEFORE, AFTER, -(2**63), 2**63 - 1]
MODULE = """
from windrow.topology import Microbatch, Topology

topology = Topology("far", depots={"messages": "data/depot"}, states="data/far")
topology.state("latest", key="type STRING", value="at TIMESTAMP")


@topology.function
def keep(microbatch: Microbatch) -> None:
    microbatch.state("latest").combine(microbatch.rows("messages"), at=("event_time", "last", "version"))
"""
COMMANDS = [
    "verify --strict", "show --rejected", "export --rejected --out out.csv", "export --rejected --out out.json",
    "export --rejected --out out.parquet", "status --sources", "plot --out out.html", "replay", "tune", "doctor",
    "quality", "tick", "tick --all", "verify --strict --all",
]  # fmt: skip


@pytest.fixture
def far(windrow: Command, tmp_path: Path) -> Iterator[Command]:
    """A ledger that rejected messages with such times, some of which are in the statistics of their files."""
    (tmp_path / "windrow.toml").write_text('idle_timeout = "never"\n', "utf-8")
    for file, times in enumerate(([100 * SECOND, BEFORE, AFTER], FAR)):
        at = (130 + file) * SECOND
        publish(tmp_path, *(message("a", time, at) for time in times), message("b", at, times[-1]))
        (tmp_path / "messages.parquet").rename(tmp_path / f"{file}.parquet")
        assert windrow("ingest", f"{file}.parquet").status == 0
        assert windrow("run").status == 0
    yield windrow
    sys.modules.pop("far", None)
    sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


def test_commands(far: Command) -> None:
    """Every command works with them."""
    results = {command: far(*command.split()) for command in COMMANDS}
    assert {command: result.err for command, result in results.items() if result.status} == {}


def test_differences(far: Command) -> None:
    """A verification and a replay show such a message where they differ."""
    DeltaTable("data/ledger").update(
        updates={"event_time": "received_at"}, predicate="state = 'rejected' AND type = 'a'"
    )
    verified = far("verify")
    assert (verified.status, f"{BEFORE} us" in verified.out) == (1, True)
    assert far("replay").status == 1


def test_lossless(far: Command, tmp_path: Path) -> None:
    """Text has the time in microseconds, and csv and json say the same."""
    for name in ("out.csv", "out.json"):
        assert far("export", "--rejected", "--out", name).status == 0
    with (tmp_path / "out.csv").open() as file:
        from_csv = sorted(row["event_time"] for row in csv.DictReader(file))
    lines = (tmp_path / "out.json").read_text("utf-8").splitlines()
    from_json = sorted(json.loads(line)["event_time"] for line in lines)
    assert from_csv == from_json
    written = [text for text in from_csv if text.endswith(" us")]
    assert sorted(int(text.removesuffix(" us")) for text in written) == sorted([BEFORE, AFTER, *FAR])
    shown = far("show", "--rejected", "--limit", "20", "--json").out
    assert all(f"{time} us" in shown for time in FAR)


def test_states(far: Command, tmp_path: Path) -> None:
    """A state may hold them: it is shown, verified and replayed."""
    (tmp_path / "far.py").write_text(MODULE, "utf-8")
    assert far("run", "far:topology").status == 0
    shown = far("show", "far:topology", "--state", "latest", "--key", "a").out
    assert any(f"at={time} us" in shown for time in FAR)
    assert far("verify", "far:topology", "--replay").status == 0

"""Tables that an earlier version of the library has written are opened, run on and verified by this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.kept.making import HERE, counting, messages
from tests.messages import SECOND, log
from windrow.model.tables import SCHEMA_VERSION
from windrow.settings.settings import Settings
from windrow.testing import Harness
from windrow.topology.verify import verify_topology
from windrow.verify import verify

KEPT = sorted(HERE.iterdir())


@pytest.fixture(params=KEPT, ids=lambda path: path.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the tables of a format."""
    return Path(shutil.copytree(request.param, tmp_path / "kept"))


def test_this_format_is_kept() -> None:
    """Tables of the present schema version are kept."""
    assert f"schema-{SCHEMA_VERSION}" in " ".join(path.name for path in KEPT)


def go_on(directory: Path, factory: EngineFactory) -> None:
    """Verify a batcher's ledger, run on it with new messages, and verify all of it again."""
    world = World.__new__(World)
    world.clock, world.payload = ManualClock(NOW + 60 * SECOND), None
    world.depot, world.ledger = str(directory / "depot"), str(directory / "ledger")
    before = world.rows("closed", "rejected")
    assert verify(world.depot, world.ledger).ok
    world.publish(*log(versions=2, seed=9, start=NOW + 16 * SECOND))
    assert world.runner(factory).once().total("message_count") == 60
    report = verify(world.depot, world.ledger)
    assert report.ok, report
    after = {row["id"]: row for row in world.rows("closed", "rejected")}
    assert [after[row["id"]] for row in before] == before


def test_batcher(kept: Path) -> None:
    """A ledger is verified, grows, keeps its closed rows, and is verified again."""
    go_on(kept / "batcher", EMBEDDED)


@pytest.mark.spark
@pytest.mark.ci
def test_batcher_on_spark(kept: Path, request: pytest.FixtureRequest) -> None:
    """So it is on Spark."""
    go_on(kept / "batcher", EngineFactory("spark", request.getfixturevalue("spark")))


def test_topology(kept: Path) -> None:
    """A topology goes on with its states, counts each message once, and appends the new rows to its output."""
    harness = Harness(counting(), kept / "topology", clock=ManualClock(NOW + 60 * SECOND))
    harness.append(messages(2))
    assert len(harness.run().microbatches) == 1
    assert verify_topology(harness.topology, Settings(engine="embedded")).differences == ()
    counted = {row["kind"]: row["count"] for row in harness.state("counts")}
    assert counted == {f"kind {number}": 5 for number in range(3)}
    copies = DeltaTable(kept / "topology" / "copies").to_pyarrow_table()["payload"].to_pylist()
    assert sorted(map(int, copies)) == list(range(15))

"""Functions of frames, and depots that hold no messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import ManualClock
from tests.conftest import EngineFactory
from tests.engine.forms import FORMS, Form, have_spark
from tests.engine.world import World
from tests.messages import log
from windrow.errors import TopologyRefused
from windrow.testing import Harness
from windrow.topology import Depot, Microbatch, Topology, run_topology


def test_frames(spark: Any, tmp_path: Path) -> None:
    """
    A function of frames does on Spark what one of Arrow tables does.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    topology = Topology("frames", depots=["sentences"], state="frames")

    @topology.pstate("counts", key="word STRING", value="count BIGINT")
    def counts(microbatch: Microbatch) -> DataFrame:
        words = microbatch.messages.select(F.explode(F.split("payload", " ")).alias("word"))
        new = words.groupBy("word").count()
        return microbatch.state("counts").upsert(new, count=F.coalesce("old.count", F.lit(0)) + F.col("new.count"))

    harness = Harness(topology, tmp_path, engine="spark", session=spark)
    harness.append([{"payload": "to be or not to be"}])
    harness.run()
    harness.append([{"payload": "to sleep"}])
    harness.run()
    found = {row["word"]: row["count"] for row in harness.state("counts")}
    assert found == {"to": 3, "be": 2, "or": 1, "not": 1, "sleep": 1}


@pytest.mark.parametrize(
    ("rows", "said"),
    [("SELECT CAST(NULL AS BIGINT) AS user", "NULL in its key"), ("SELECT 1L AS user UNION ALL SELECT 1L", "twice")],
    ids=["null", "twice"],
)
def test_refused_keys(spark: Any, tmp_path: Path, rows: str, said: str) -> None:
    """
    A key that is NULL, or stands twice, is refused, and nothing of the microbatch is written.
    """
    from pyspark.sql import DataFrame

    topology = Topology("users", depots=["events"], state="users")

    @topology.pstate("seen", key="user BIGINT", value="times BIGINT")
    def seen(microbatch: Microbatch) -> DataFrame:
        return spark.sql(rows).selectExpr("user", "1L AS times")

    harness = Harness(topology, tmp_path, engine="spark", session=spark)
    harness.append([{"payload": "one"}])
    with pytest.raises(TopologyRefused, match=said):
        harness.run()
    assert list(harness.state("seen")) == []


@pytest.mark.slow_on_spark
@pytest.mark.parametrize("name", ["version", "Version"])
def test_column_version(tmp_path: Path, engine: EngineFactory, name: str) -> None:
    """
    Rows with a column `version` of their own keep it; the depot's version has the name that Delta's feed gives it.
    """
    topology = Topology("rows", depots={"programs": Depot(str(tmp_path / "programs"))}, state=str(tmp_path / "states"))

    @topology.pstate("seen", key="program STRING", value="version BIGINT, depot_version BIGINT")
    def seen(microbatch: Microbatch) -> pa.Table:
        rows = microbatch.messages
        new = {"program": rows["program"], "version": rows[name], "depot_version": rows["_commit_version"]}
        return microbatch.state("seen").upsert(pa.table(new))

    feed = {"delta.enableChangeDataFeed": "true"}
    for at in range(2):
        programs = pa.table({"program": [f"p{at}"], name: [70 + at]})
        write_deltalake(tmp_path / "programs", programs, mode="append", configuration=None if at else feed)
    settings = engine.settings(str(tmp_path / "programs"), topology.state, max_messages=1)
    assert run_topology(topology, settings, spark=engine.session).total("messages") == 2
    found = DeltaTable(topology.state).to_pyarrow_table(filters=[("state", "=", "seen")]).sort_by("program")
    assert found.select(["version", "depot_version"]).to_pydict() == {"version": [70, 71], "depot_version": [0, 1]}


def closing(ledger: str, state: str) -> Topology:
    """Return a topology that notes each closed batch."""
    topology = Topology("closing", depots={"closed": Depot(ledger)}, state=state)

    @topology.pstate("closed_once", key="batch STRING", value="times BIGINT, held BIGINT")
    def closed_once(microbatch: Microbatch) -> pa.Table:
        batches = microbatch.messages
        new = pa.table({"batch": batches["id"], "held": batches["message_count"]})
        return microbatch.state("closed_once").upsert(
            new, times=lambda old, _: pc.add(pc.fill_null(old["times"], 0), 1)
        )

    return topology


@pytest.mark.slow_on_spark
@pytest.mark.parametrize("form", FORMS)
def test_closed_batches(
    tmp_path: Path, clock: ManualClock, engine: EngineFactory, monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    """
    Of the ledger of a batcher a topology sees each batch that closed, once, whichever engine closed it and however.
    """
    have_spark(form, monkeypatch)
    world = World(tmp_path, clock)
    topology = closing(world.ledger, str(tmp_path / "states"))
    settings = world.settings(engine, max_messages=30)
    for rows in log(versions=3):
        world.publish(rows)
        world.runner(engine).once()
        run_topology(topology, settings, spark=engine.session, clock=clock)
    world.runner(engine).flush()
    run_topology(topology, settings, spark=engine.session, clock=clock)
    found = DeltaTable(topology.state).to_pyarrow_table(filters=[("state", "=", "closed_once")])
    closed = world.rows("closed")
    assert sorted(found["batch"].to_pylist()) == [row["id"] for row in closed]
    assert set(found["times"].to_pylist()) == {1}
    assert pc.sum(found["held"]).as_py() == sum(row["message_count"] for row in closed)

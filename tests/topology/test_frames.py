"""Functions that work with DataFrames, and depots that hold no messages."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.forms import FORMS, Form, have_spark
from tests.engine.world import World
from tests.faults.test_values import not_utf_8
from tests.messages import log
from windrow.errors import DepotChangedError, DepotUnreadableError, TopologyError
from windrow.testing import DriverCrash, Harness, Point
from windrow.topology import Depot, Microbatch, SparkMicrobatch, Topology, frame_state, run_topology


def sales() -> Topology:
    """Return a topology of sales on frames, with an Arrow function in between."""
    from pyspark.sql import functions as F

    topology = Topology("sales", depots=["sales"], states="sales", outputs={"large": "large"})
    topology.state("shops", key="shop STRING", value="total BIGINT, last_amount BIGINT, tags ARRAY<STRING>")
    topology.state("all", value="rows BIGINT", initial={"rows": 100})

    @topology.function
    def add(microbatch: SparkMicrobatch) -> None:
        rows, shops = microbatch.rows("sales"), microbatch.state("shops")
        shops.combine(rows, total=("amount", "sum"), last_amount=("amount", "last", "at"))
        microbatch.append("large", rows.where("amount > 100").select("shop", "amount"))
        shops.delete(rows.where("amount < 0").select("shop"))

    @topology.function
    def tag(microbatch: Microbatch) -> None:
        shops = microbatch.state("shops")
        rows = shops.all()
        tags = pa.array([[f"{total > 10}"] for total in rows["total"].to_pylist()], pa.list_(pa.string()))
        shops.put(rows.set_column(rows.schema.get_field_index("tags"), "tags", tags))
        microbatch.state("all").combine(microbatch.rows("sales"), rows="count")

    @topology.function
    def double(microbatch: SparkMicrobatch) -> None:
        shops = microbatch.state("shops")
        north = shops.get(microbatch.rows("sales").sparkSession.createDataFrame([("north",)], "shop STRING"))
        shops.put(north.where("total IS NOT NULL").withColumn("total", F.col("total") * 2))

    return topology


@pytest.mark.ci
@pytest.mark.slow_unless({"few_rows": 20_000, "crash": True})
@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("few_rows", [20_000, 0])
def test_frames(spark: Any, tmp_path: Path, few_rows: int, crash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Functions on frames and on Arrow tables see each other's changes, and all of it is in one commit, once, also after a
    crash; outputs too. So it is whether few aggregates come to the driver or all stay on the executors.
    """
    monkeypatch.setattr("windrow.topology.frame_state.FEW_ROWS", few_rows)
    harness = Harness(sales(), tmp_path, engine="spark", session=spark)
    harness.create(pa.schema([("shop", pa.string()), ("amount", pa.int64()), ("at", pa.int64())]))
    harness.append(
        [{"shop": "north", "amount": 3, "at": 2}, {"shop": "north", "amount": 200, "at": 1},
         {"shop": "south", "amount": 4, "at": 3}, {"shop": "west", "amount": -1, "at": 4}]
    )  # fmt: skip
    if crash:
        harness.crash_at(Point.BEFORE_COMMIT)
        with pytest.raises(DriverCrash):
            harness.run()
        harness.restart()
    harness.run()
    assert harness.state("shops") == [
        {"shop": "north", "total": 406, "last_amount": 3, "tags": ["True"]},
        {"shop": "south", "total": 4, "last_amount": 4, "tags": ["False"]},
    ]
    harness.append([{"shop": "south", "amount": 10, "at": 9}])
    harness.run()
    assert harness.state("shops") == [
        {"shop": "north", "total": 812, "last_amount": 3, "tags": ["True"]},
        {"shop": "south", "total": 14, "last_amount": 10, "tags": ["True"]},
    ]
    assert harness.state("all") == [{"rows": 105}]
    assert DeltaTable(tmp_path / "large").to_pyarrow_table().to_pylist() == [{"shop": "north", "amount": 200}]


@pytest.mark.slow_unless({"error_message": "twice"})
@pytest.mark.parametrize(
    ("rows", "error_message"),
    [("SELECT CAST(NULL AS BIGINT) AS user", "NULL in its key"), ("SELECT 1L AS user UNION ALL SELECT 1L", "twice")],
    ids=["null", "twice"],
)
def test_refused_keys_of_put(spark: Any, tmp_path: Path, rows: str, error_message: str) -> None:
    """
    A key that is NULL, or stands twice, is refused, and nothing of the microbatch is written.
    """
    topology = Topology("users", depots=["events"], states="users")
    topology.state("seen", key="user BIGINT", value="times BIGINT")

    @topology.function
    def see(microbatch: SparkMicrobatch) -> None:
        microbatch.state("seen").put(spark.sql(rows).selectExpr("user", "1L AS times"))

    harness = Harness(topology, tmp_path, engine="spark", session=spark)
    harness.append([{"payload": "one"}])
    with pytest.raises(TopologyError, match=error_message):
        harness.run()
    assert list(harness.state("seen")) == []


@pytest.mark.slow_unless({"few_rows": 0})
@pytest.mark.parametrize("few_rows", [20_000, 0])
def test_refused_key_of_combine(spark: Any, tmp_path: Path, few_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Rows without a key are not left out: they are refused, on the driver and on the executors.
    """
    monkeypatch.setattr("windrow.topology.frame_state.FEW_ROWS", few_rows)
    topology = Topology("users", depots=["events"], states="users")
    topology.state("seen", key="user BIGINT", value="times BIGINT")

    @topology.function
    def see(microbatch: SparkMicrobatch) -> None:
        microbatch.state("seen").combine(spark.sql("SELECT CAST(NULL AS BIGINT) AS user"), times="count")

    harness = Harness(topology, tmp_path, engine="spark", session=spark)
    harness.append([{"payload": "one"}])
    with pytest.raises(TopologyError, match="NULL"):
        harness.run()
    assert list(harness.state("seen")) == []


@pytest.mark.slow
def test_hanging_job_on_spark(spark: Any, tmp_path: Path) -> None:
    """
    A function whose Spark job takes too long is cut off: its job is cancelled, and the attempt made again.
    """
    topology = Topology("hanging", depots=["events"], states="hanging")
    topology.state("seen", value="times BIGINT")
    failed: list[Exception] = []

    @topology.function
    def see(microbatch: SparkMicrobatch) -> None:
        if (microbatch.id, microbatch.attempt) == (4, 1):
            try:
                spark.range(8 * 10**8).selectExpr("sum(id % 7)").collect()
            except Exception as error:
                failed.append(error)
                raise
        microbatch.state("seen").combine(microbatch.rows("events"), times="count")

    harness = Harness(topology, tmp_path, engine="spark", session=spark, max_retries=3)
    for timeout in ("10m", "15s"):
        harness.append([{"payload": "one"}])
        harness.set_option("phase_timeout", timeout)
        harness.run()
    assert harness.state("seen") == [{"times": 2}]
    assert "cancel" in str(failed[0]).lower()
    if ".connect." not in type(spark).__module__:  # which does not tell
        assert not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_without_spark(tmp_path: Path) -> None:
    """
    Without Spark a function on frames is refused by its name, as is one whose parameter says nothing.
    """
    topology = Topology("users", depots=["events"], states="users")

    @topology.function
    def see(microbatch: SparkMicrobatch) -> None:
        raise AssertionError(microbatch)

    harness = Harness(topology, tmp_path)
    harness.append([{"payload": "one"}])
    with pytest.raises(TopologyError, match="the function see needs Spark DataFrames"):
        harness.run()
    with pytest.raises(TopologyError, match="has no annotation"):
        topology.function(lambda _: None)


@pytest.mark.slow_on_spark
@pytest.mark.parametrize("name", ["version", "Version"])
def test_column_version(tmp_path: Path, engine: EngineFactory, name: str) -> None:
    """
    Rows with a column `version` of their own keep it; the depot's version has the name that Delta's feed gives it.
    """
    topology = Topology("rows", depots={"programs": Depot(str(tmp_path / "programs"))}, states=str(tmp_path / "states"))
    topology.state("seen", key="program STRING", value="version BIGINT, depot_version BIGINT")

    @topology.function
    def see(microbatch: Microbatch) -> None:
        rows = microbatch.rows("programs")
        new = {"program": rows["program"], "version": rows[name], "depot_version": rows["_commit_version"]}
        microbatch.state("seen").put(pa.table(new))

    feed = {"delta.enableChangeDataFeed": "true"}
    for at in range(2):
        programs = pa.table({"program": [f"p{at}"], name: [70 + at]})
        write_deltalake(tmp_path / "programs", programs, mode="append", configuration=None if at else feed)
    settings = engine.settings(str(tmp_path / "programs"), topology.location, max_messages=1)
    assert run_topology(topology, settings, spark=engine.session).total("message_count") == 2
    seen = topology.read("seen")
    assert seen.select(["version", "depot_version"]).to_pydict() == {"version": [70, 71], "depot_version": [0, 1]}


def closing(ledger: str, states: str) -> Topology:
    """Return a topology that notes each closed batch."""
    topology = Topology("closing", depots={"closed": Depot(ledger)}, states=states)
    topology.state("closed_once", key="batch STRING", value="times BIGINT, held BIGINT")

    @topology.function
    def note(microbatch: Microbatch) -> None:
        batches = microbatch.rows("closed").select(["id", "message_count"]).rename_columns(["batch", "held"])
        microbatch.state("closed_once").combine(batches, times="count", held=("held", "last"))

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
    closed_once = topology.read("closed_once")
    closed = world.rows("closed")
    assert sorted(closed_once["batch"].to_pylist()) == [row["id"] for row in closed]
    assert set(closed_once["times"].to_pylist()) == {1}
    assert pc.sum(closed_once["held"]).as_py() == sum(row["message_count"] for row in closed)


@pytest.mark.slow
def test_rows_stay_on_the_executors(spark: Any, tmp_path: Path) -> None:
    """
    Rows of a depot without messages, too many for the driver, give the same states from a frame.
    """
    topology = Topology("many", depots=["numbers"], states="many")
    topology.state("sums", key="remainder BIGINT", value="total BIGINT")

    @topology.function
    def add(microbatch: SparkMicrobatch) -> None:
        rows = microbatch.rows("numbers").selectExpr("number % 10 AS remainder", "number")
        microbatch.state("sums").combine(rows, total=("number", "sum"))

    harness = Harness(topology, tmp_path, engine="spark", session=spark, max_driver_messages=100)
    harness.create(pa.schema([("number", pa.int64())]))
    for start in (0, 5_000):
        harness.append(pa.table({"number": range(start, start + 5_000)}))
        harness.run()
    totals = {row["remainder"]: row["total"] for row in harness.state("sums")}
    assert totals == {number: sum(range(number, 10_000, 10)) for number in range(10)}
    assert {row["processed_on"] for row in harness.history()} == {"executors"}


def test_ledger_set_back(tmp_path: Path, clock: ManualClock) -> None:
    """
    A ledger that was restored closes batches a second time: the topology that reads it stops instead of counting them.
    """
    world = World(tmp_path, clock)
    topology = closing(world.ledger, str(tmp_path / "states"))
    settings = world.settings(EMBEDDED)
    world.publish(*log(versions=3))
    world.runner(EMBEDDED).once()
    world.runner(EMBEDDED).flush()
    run_topology(topology, settings, clock=clock)
    DeltaTable(world.ledger).restore(1)
    world.runner(EMBEDDED).flush()
    with pytest.raises(DepotChangedError, match="undoes earlier microbatches"):
        run_topology(topology, settings, clock=clock)


@pytest.mark.slow
def test_state_is_joined_by_sorting(spark: Any, tmp_path: Path) -> None:
    """
    Spark joins the rows of a state by sorting them, however few bytes it takes them for: a million keys that compress
    well would fill the driver's heap, and a hash map of five million does not fit an executor of 1 GiB.
    """
    from pyspark.sql import functions as F

    plans: list[str] = []
    topology = Topology("plans", depots=["numbers"], states="plans")
    topology.state("sums", key="number BIGINT", value="total BIGINT")

    @topology.function
    def look(microbatch: SparkMicrobatch) -> None:
        state = microbatch.state("sums")
        state_rows = state.get(microbatch.rows("numbers").select("number"))
        plans.append(state_rows._jdf.queryExecution().toString())
        state.put(state_rows.withColumn("total", F.lit(1)))

    harness = Harness(topology, tmp_path, engine="spark", session=spark, max_driver_messages=0)
    harness.create(pa.schema([("number", pa.int64())]))
    for _ in range(2):
        harness.append(pa.table({"number": range(10)}))
        harness.run()
    [view] = harness.topology.views(f"delta.`{harness.topology.location}`").values()
    plans.append(spark.sql(view)._jdf.queryExecution().toString())
    assert len(plans) == 3
    assert all("SortMergeJoin" in plan and "Broadcast" not in plan and "ShuffledHash" not in plan for plan in plans)
    assert {row["total"] for row in harness.state("sums")} == {1}


@pytest.mark.slow
@pytest.mark.slow_unless({"frames": False})
@pytest.mark.parametrize("frames", [False, True], ids=["tables", "frames"])
def test_many_changes_overwrite_a_state(
    spark: Any, tmp_path: Path, frames: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A microbatch that changes many rows of a state overwrites its partition, a MERGE changes few. Either leaves the rows
    that stay, those of other states, and none of a deleted key.
    """
    monkeypatch.setattr("windrow.ledger.open_batches.FEW_ROWS", 10)
    topology = Topology("sums", depots=["numbers"], states="sums")
    for state in ("sums", "others"):
        topology.state(state, key="number BIGINT", value="total BIGINT")

    def add(microbatch: Any) -> None:
        rows = microbatch.rows("numbers")
        microbatch.state("sums").combine(rows, total=("amount", "sum"))
        if microbatch.id == 1:
            microbatch.state("others").combine(rows, total=("amount", "max"))

    def add_tables(microbatch: Microbatch) -> None:
        add(microbatch)

    def add_frames(microbatch: SparkMicrobatch) -> None:
        add(microbatch)

    topology.function(add_frames if frames else add_tables)

    @topology.function
    def forget(microbatch: Microbatch) -> None:
        microbatch.state("sums").delete(pa.table({"number": [7]}))

    harness = Harness(topology, tmp_path, engine="spark", session=spark)
    harness.create(pa.schema([("number", pa.int64()), ("amount", pa.int64())]))
    for count in (40, 30, 1):
        harness.append([{"number": number, "amount": number} for number in range(count)])
        harness.run()
    totals = {number: number * (2 if number < 30 else 1) for number in range(40) if number != 7}
    assert harness.state("sums") == [{"number": number, "total": total} for number, total in totals.items()]
    assert harness.state("others") == [{"number": number, "total": number} for number in range(40)]
    rows = (
        DeltaTable(tmp_path / "states-of-sums")
        .to_pyarrow_table(filters=[("state", "=", "microbatch")])
        .sort_by("microbatch")
    )
    assert rows["commit_mode"].to_pylist() == ["merge"] * 3


SUMS = {
    "wraps": ("BIGINT", pa.int64(), [2**62, 2**62], None),
    "fits in the end": ("BIGINT", pa.int64(), [2**63 - 1, 1, -1], 2**63 - 1),
    "fraction": ("BIGINT", pa.decimal128(10, 2), [Decimal("1.50")], None),
    "digits": ("DECIMAL(5, 1)", pa.decimal128(10, 2), [Decimal("1.25")], None),
    "large decimal": ("DECIMAL(5, 2)", pa.decimal128(5, 2), [Decimal("999.99"), Decimal("1.00")], None),
    "largest decimal": ("DECIMAL(38, 0)", pa.decimal128(38, 0), [Decimal(9 * 10**37)] * 2, None),
}


@pytest.mark.ci
@pytest.mark.slow_unless({"few": True, "kind": pa.int64()})
@pytest.mark.parametrize("few", [True, False], ids=["on the driver", "on executors"])
@pytest.mark.parametrize(("value", "kind", "amounts", "total"), SUMS.values(), ids=SUMS)
def test_sums_never_wrap(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    few: bool,
    value: str,
    kind: pa.DataType,
    amounts: list[Any],
    total: int | None,
) -> None:
    """
    Sums of DataFrames are exact or refused, and nothing is rounded, whether their aggregates come to the driver or not.
    """
    monkeypatch.setattr(frame_state, "FEW_ROWS", 100 if few else 0)
    topology = Topology("summing", depots=["numbers"], states="sums")
    topology.state("sums", key="name STRING", value=f"total {value}")

    @topology.function
    def add(microbatch: SparkMicrobatch) -> None:
        microbatch.state("sums").combine(microbatch.rows("numbers"), total=("amount", "sum"))

    harness = Harness(topology, tmp_path, engine="spark", session=spark)
    harness.create(pa.schema([("name", pa.string()), ("amount", kind)]))
    harness.append(pa.table({"name": ["a"] * len(amounts), "amount": pa.array(amounts, kind)}))
    if total is None:
        with pytest.raises(TopologyError, match="combine of the state sums cannot compute total"):
            harness.run()
    else:
        harness.run()
        assert harness.state("sums") == [{"name": "a", "total": total}]


@pytest.mark.ci
def test_a_bug_on_an_executor_is_not_retried(spark: Any, tmp_path: Path) -> None:
    """
    A programming error in Python on an executor ends the run at once.
    """
    topology, calls = Topology("buggy", depots=["numbers"], states="sums"), []
    topology.state("sums", key="name STRING", value="total BIGINT")

    @topology.function
    def add(microbatch: SparkMicrobatch) -> None:
        calls.append(microbatch.attempt)
        rows = microbatch.rows("numbers").mapInPandas(lambda parts: (1 + "a" for _ in parts), "name STRING, total LONG")
        microbatch.state("sums").put(rows)

    harness = Harness(topology, tmp_path, engine="spark", session=spark, max_retries=3)
    harness.create(pa.schema([("name", pa.string())]))
    harness.append([{"name": "a"}])
    with pytest.raises(TopologyError, match="failed on an executor: TypeError: unsupported"):
        harness.run()
    assert calls == [1]


@pytest.mark.slow
def test_feed_that_came_later(spark: Any, tmp_path: Path) -> None:
    """
    A depot whose change feed was switched on later is read from its first version on, by its files.
    """
    topology = Topology("summing", depots=["numbers"], states="sums")
    topology.state("sums", value="total BIGINT")

    @topology.function
    def add(microbatch: Microbatch) -> None:
        microbatch.state("sums").combine(microbatch.rows("numbers"), total=("amount", "sum"))

    place = str(tmp_path / "numbers")
    write_deltalake(place, pa.table({"amount": [1]}))
    write_deltalake(place, pa.table({"amount": [2]}), mode="append")
    DeltaTable(place).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    write_deltalake(place, pa.table({"amount": [4]}), mode="append")
    harness = Harness(topology, tmp_path, engine="spark", session=spark)
    harness.run()
    assert harness.state("sums") == [{"total": 7}]


def remarks(frames: bool = False) -> Topology:
    """Return a topology that keeps the rows of a depot."""
    topology = Topology("remarks", depots=["remarks"], states="seen")
    topology.state("seen", key="n BIGINT", value="remark STRING")

    def in_tables(microbatch: Microbatch) -> None:
        rows = microbatch.rows("remarks")
        microbatch.state("seen").put(pa.table({"n": rows["n"], "remark": pc.list_element(rows["remarks"], 0)}))

    def in_frames(microbatch: SparkMicrobatch) -> None:
        microbatch.state("seen").put(microbatch.rows("remarks").selectExpr("n", "remarks[0] AS remark"))

    topology.function(in_frames if frames else in_tables)
    return topology


class TestTextThatIsNotUtf8:
    """Delta's query of a change feed gives U+FFFD for such bytes, so different texts would be equal."""

    @pytest.mark.spark
    @pytest.mark.slow_unless({"on": "tables", "feed": True}, {"on": "frames", "feed": True})
    @pytest.mark.parametrize("on", ["tables", "frames", "tables, few in memory"])
    @pytest.mark.parametrize("feed", [True, False], ids=["feed", "files"])
    def test_spark(self, spark: Any, tmp_path: Path, on: str, feed: bool) -> None:
        """
        A topology on Spark stops before a version with such text, in a list too; U+FFFD itself is passed on.
        """
        memory = {"max_driver_messages": 1} if on == "tables, few in memory" else {}
        harness = Harness(remarks(on == "frames"), tmp_path, engine="spark", session=spark, **memory)
        self.require_refused(harness, feed)

    def test_embedded(self, tmp_path: Path) -> None:
        """
        So does the embedded engine.
        """
        self.require_refused(Harness(remarks(), tmp_path), feed=True)

    def require_refused(self, harness: Harness, feed: bool) -> None:
        """Append what is text, and then what is not."""
        columns = pa.schema([("n", pa.int64()), ("remarks", pa.list_(pa.string()))])
        configuration = {"delta.enableChangeDataFeed": str(feed).lower()}
        DeltaTable.create(str(harness.directory / "remarks"), columns, configuration=configuration)
        harness.append(pa.table({"n": [1, 2], "remarks": [["\ufffd"], ["b"]]}, columns))
        harness.run()
        offsets = pa.array([0, 1, 3], pa.int32())
        broken = pa.ListArray.from_arrays(offsets, pa.concat_arrays([not_utf_8(), pa.array(["c"])]))
        write_deltalake(harness.directory / "remarks", pa.table({"n": [3, 4], "remarks": broken}), mode="append")
        with pytest.raises(DepotUnreadableError, match="versions 2 to 2 have text that is not UTF-8"):
            harness.run()
        assert harness.state("seen") == [{"n": 1, "remark": "\ufffd"}, {"n": 2, "remark": "b"}]

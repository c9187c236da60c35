"""A table of states by name in Spark's session catalog: a view beside it for each state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.clocks import ManualClock
from tests.engine.test_catalog import publish, schema, tables_in
from tests.messages import message, table
from tests.probes import open_tables
from windrow.engine import open_engine
from windrow.engine.side_files import DIRECTORY
from windrow.settings.settings import Settings
from windrow.topology import Microbatch, Topology, run_topology

__all__ = ["schema"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SETTINGS = Settings(engine="spark")


def kinds(home: str) -> Topology:
    """Return a topology that counts the types of messages, over tables of a schema."""
    topology = Topology("all-kinds", depots=[f"{home}.depot"], states=f"{home}.states")
    topology.state("counts", key="kind STRING", value="count BIGINT")

    @topology.function
    def count(microbatch: Microbatch) -> None:
        microbatch.state("counts").combine(kinds_in(microbatch), count="count")

    return topology


def kinds_in(microbatch: Microbatch) -> pa.Table:
    """Return the types of the new messages, and the number of the microbatch."""
    types = microbatch.rows("depot")["type"]
    return pa.table({"kind": types, "seen_in": pa.repeat(microbatch.id, len(types))})


def read_view(spark: Any, view: str) -> list[dict[str, Any]]:
    """Return the rows of a view by key."""
    rows: list[dict[str, Any]] = spark.table(view).toArrow().sort_by("kind").to_pylist()
    return rows


def test_views(spark: Any, schema: str, clock: ManualClock) -> None:
    """Each state has a view with its own columns, `<topology>_<state>`; one that is declared later gets its columns and
    its view, also where all of its columns are there already, and the others stay as they are.
    """
    settings = SETTINGS.model_copy(update={"depot": f"{schema}.depot", "ledger": f"{schema}.states"})
    open_tables(settings, spark).writer.create(table([]).schema.field("payload").type, "90d")
    publish(spark, f"{schema}.depot", [message("a"), message("a"), message("b")])
    run_topology(kinds(schema), SETTINGS, spark=spark, clock=clock)
    assert tables_in(spark, schema) == {"depot", "states", "all_kinds_counts"}
    assert read_view(spark, f"{schema}.all_kinds_counts") == [{"kind": "a", "count": 2}, {"kind": "b", "count": 1}]
    assert (
        Path(str(open_engine(settings, spark).path(settings.ledger))) / DIRECTORY
    ).is_dir()  # for plans, from the first on

    later = kinds(schema)

    later.state("latest", key="kind STRING", value="seen_in BIGINT")

    @later.function
    def note(microbatch: Microbatch) -> None:
        microbatch.state("latest").combine(kinds_in(microbatch), seen_in=("seen_in", "last"))

    publish(spark, f"{schema}.depot", [message("b"), message("c")])
    run_topology(later, SETTINGS, spark=spark, clock=clock)
    number = spark.table(f"{schema}.states").selectExpr("max(microbatch)").collect()[0][0]
    assert tables_in(spark, schema) == {"depot", "states", "all_kinds_counts", "all_kinds_latest"}
    assert read_view(spark, f"{schema}.all_kinds_counts") == [
        {"kind": "a", "count": 2},
        {"kind": "b", "count": 2},
        {"kind": "c", "count": 1},
    ]
    assert read_view(spark, f"{schema}.all_kinds_latest") == [{"kind": kind, "seen_in": number} for kind in ("b", "c")]

    later.state("last_counts", key="kind STRING", value="count BIGINT")

    @later.function
    def count_last(microbatch: Microbatch) -> None:
        counted = kinds_in(microbatch).group_by("kind").aggregate([([], "count_all")])
        microbatch.state("last_counts").put(counted.rename_columns(["kind", "count"]))

    publish(spark, f"{schema}.depot", [message("a")])
    run_topology(later, SETTINGS, spark=spark, clock=clock)
    assert read_view(spark, f"{schema}.all_kinds_last_counts") == [{"kind": "a", "count": 1}]
    assert later.read("latest", keys=[{"kind": "c"}], spark=spark)["seen_in"].to_pylist() == [number]
    assert later.read("counts", at=1, spark=spark)["count"].to_pylist() == [2, 1]


def test_views_of_other_columns(spark: Any, schema: str, clock: ManualClock) -> None:
    """A view shows the declared columns after a migration, and a state without a key before it was written."""
    settings = SETTINGS.model_copy(update={"depot": f"{schema}.depot", "ledger": f"{schema}.states"})
    open_tables(settings, spark).writer.create(table([]).schema.field("payload").type, "90d")
    publish(spark, f"{schema}.depot", [message("a"), message("a"), message("b")])
    before = kinds(schema)
    initial = {"note": "it's \\ new", "sums": [1, 2], "at": datetime(2026, 1, 31, tzinfo=UTC)}
    before.state("never", value="note STRING, sums ARRAY<BIGINT>, at TIMESTAMP, nothing DOUBLE", initial=initial)
    run_topology(before, SETTINGS, spark=spark, clock=clock)
    [never] = spark.table(f"{schema}.all_kinds_never").toArrow().to_pylist()
    assert never == initial | {"nothing": None}
    assert before.read("never", spark=spark).to_pylist() == [never]

    def halved(rows: pa.Table) -> pa.Table:
        return rows.set_column(1, "count", pc.divide(rows["count"].cast(pa.float64()), 2))

    after = Topology("all-kinds", depots=[f"{schema}.depot"], states=f"{schema}.states")
    after.state("counts", key="kind STRING", value="count DOUBLE, note STRING", version=2, migrate=with_note(halved))

    @after.function
    def count(microbatch: Microbatch) -> None:
        microbatch.state("counts").combine(kinds_in(microbatch), count="count")

    publish(spark, f"{schema}.depot", [message("b")])
    run_topology(after, SETTINGS, spark=spark, clock=clock)
    rows = [{"kind": "a", "count": 1.0, "note": "n"}, {"kind": "b", "count": 1.5, "note": "n"}]
    assert read_view(spark, f"{schema}.all_kinds_counts") == rows
    assert after.read("counts", spark=spark).to_pylist() == rows
    assert after.read("counts", at=1, spark=spark).to_pylist() == [
        {"kind": "a", "count": 2},
        {"kind": "b", "count": 1},
    ]


def with_note(migrate: Callable[[pa.Table], pa.Table]) -> Callable[[pa.Table], pa.Table]:
    """Return what migrates rows and adds a note."""
    return lambda rows: migrate(rows).append_column("note", pa.repeat("n", rows.num_rows))

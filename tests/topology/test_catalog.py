"""A table of states by name in Spark's session catalog: a view beside it for each state."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.clocks import ManualClock
from tests.engine.test_catalog import publish, schema, tables_in
from tests.messages import message, table
from windrow.engine import open_engine
from windrow.settings.settings import Settings
from windrow.topology import Microbatch, Topology, run_topology

__all__ = ["schema"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SETTINGS = Settings(engine="spark")


def kinds(home: str) -> Topology:
    """Return a topology that counts the types of messages, over tables of a schema."""
    topology = Topology("all-kinds", depots=[f"{home}.depot"], state=f"{home}.states")

    @topology.pstate("counts", key="kind STRING", value="count BIGINT")
    def counts(microbatch: Microbatch) -> pa.Table:
        new = microbatch.messages.group_by("type").aggregate([([], "count_all")]).rename_columns(["kind", "count"])
        return microbatch.state("counts").upsert(
            new, count=lambda old, new: pc.add(pc.fill_null(old["count"], 0), new["count"])
        )

    return topology


def seen(spark: Any, view: str) -> list[dict[str, Any]]:
    """Return the rows of a view by key."""
    found: list[dict[str, Any]] = spark.table(view).toArrow().sort_by("kind").to_pylist()
    return found


def test_views(spark: Any, schema: str, clock: ManualClock) -> None:
    """
    Each state has a view with its own columns, `<topology>_<state>`; one that is declared later gets its columns and
    its view, also where all of its columns are there already, and the others stay as they are.
    """
    given = SETTINGS.model_copy(update={"depot": f"{schema}.depot", "ledger": f"{schema}.states"})
    open_engine(given, spark).create_depot(table([]).schema.field("payload").type, "90d")
    publish(spark, f"{schema}.depot", [message("a"), message("a"), message("b")])
    run_topology(kinds(schema), SETTINGS, spark=spark, clock=clock)
    assert tables_in(spark, schema) == {"depot", "states", "all_kinds_counts"}
    assert seen(spark, f"{schema}.all_kinds_counts") == [{"kind": "a", "count": 2}, {"kind": "b", "count": 1}]

    later = kinds(schema)

    @later.pstate("latest", key="kind STRING", value="seen_in BIGINT")
    def latest(microbatch: Microbatch) -> pa.Table:
        new = microbatch.messages.group_by("type").aggregate([]).rename_columns(["kind"])
        return new.append_column("seen_in", pa.repeat(microbatch.id, new.num_rows))

    publish(spark, f"{schema}.depot", [message("b"), message("c")])
    run_topology(later, SETTINGS, spark=spark, clock=clock)
    number = spark.table(f"{schema}.states").selectExpr("max(microbatch)").collect()[0][0]
    assert tables_in(spark, schema) == {"depot", "states", "all_kinds_counts", "all_kinds_latest"}
    assert seen(spark, f"{schema}.all_kinds_counts") == [
        {"kind": "a", "count": 2},
        {"kind": "b", "count": 2},
        {"kind": "c", "count": 1},
    ]
    assert seen(spark, f"{schema}.all_kinds_latest") == [{"kind": kind, "seen_in": number} for kind in ("b", "c")]

    @later.pstate("last_counts", key="kind STRING", value="count BIGINT")
    def last_counts(microbatch: Microbatch) -> pa.Table:
        return microbatch.messages.group_by("type").aggregate([([], "count_all")]).rename_columns(["kind", "count"])

    publish(spark, f"{schema}.depot", [message("a")])
    run_topology(later, SETTINGS, spark=spark, clock=clock)
    assert seen(spark, f"{schema}.all_kinds_last_counts") == [{"kind": "a", "count": 1}]

"""Tables with the features that a catalog may ask for: Spark runs on them, delta-rs reads them or names the feature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.clocks import ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.messages import log, table
from windrow.cli import main
from windrow.delta.table import open_table
from windrow.errors import TableUnreadableError, WindrowError
from windrow.rows.frame import frame_of

# Each with what a catalog demands of its tables, and what the embedded engine says (empty: it reads them).
FEATURES = {
    "deletion vectors": (
        {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "none"},
        "deletionVectors",
    ),
    "row tracking": ({"delta.enableRowTracking": "true"}, "RowTracking"),
    "checkpoints": ({"delta.checkpointPolicy": "v2"}, ""),
    "type widening": ({"delta.enableTypeWidening": "true"}, "typeWidening"),
    "clustering": ({}, "clustering"),
}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES)
def test_depot_and_ledger(spark: Any, tmp_path: Path, clock: ManualClock, feature: str) -> None:
    """Windrow creates the ledger with the properties in `table_properties`, runs on it twice, and verifies it on Spark;
    the embedded engine runs after it, or refuses the feature by name.
    """
    properties, refused = FEATURES[feature]
    first, second, third = log(versions=3, seed=10)
    world = World(tmp_path, clock)
    world.depot += "-like"
    listed = ", ".join(
        f"'{name}' = '{value}'" for name, value in properties.items() | {("delta.enableChangeDataFeed", "true")}
    )
    cluster = "CLUSTER BY (key)" if feature == "clustering" else ""
    columns = frame_of(spark, table(first)).schema.simpleString().removeprefix("struct<").removesuffix(">")
    columns = columns.replace(":", " ").replace(",", ", ")
    spark.sql(f"CREATE TABLE delta.`{world.depot}` ({columns}) USING delta {cluster} TBLPROPERTIES ({listed})")
    factory = EngineFactory("spark", spark, {"table_properties": properties})
    for rows in (first, second):
        frame_of(spark, table(rows)).write.format("delta").mode("append").save(world.depot)
        world.runner(factory).once()
    configuration = DeltaTable(world.ledger).metadata().configuration
    assert properties.items() <= configuration.items()
    assert sum(row["messages_read"] for row in spark_rows(spark, world, "microbatch")) == len(first) + len(second)
    config = tmp_path / "windrow.toml"
    config.write_text(f'depot = "{world.depot}"\nledger = "{world.ledger}"\n')
    assert main(["verify", "--engine", "spark", "--config", str(config)]) == 0
    frame_of(spark, table(third)).write.format("delta").mode("append").save(world.depot)
    if refused and feature != "clustering":
        with pytest.raises(WindrowError, match=refused):
            world.runner(EMBEDDED, max_retries=0).once()
    else:
        assert world.runner(EMBEDDED).once().total("message_count") == len(third)


def spark_rows(spark: Any, world: World, state: str) -> list[Any]:
    """Return ledger rows of a state as Spark reads them."""
    return list(spark.sql(f"SELECT * FROM delta.`{world.ledger}` WHERE state = '{state}'").collect())


@pytest.mark.slow
@pytest.mark.spark
def test_merge_writes_no_deletion_vectors(spark: Any, world: World) -> None:
    """In a ledger with deletion vectors a microbatch writes none, for it removes no row."""
    factory = EngineFactory("spark", spark, {"table_properties": FEATURES["deletion vectors"][0]})
    for rows in log(versions=3, seed=10):
        world.publish(rows)
        world.runner(factory).once()
    files = Path(world.ledger, "_delta_log").glob("*.json")
    entries = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    merges = [entry for entry in entries if entry.get("commitInfo", {}).get("operation") == "MERGE"]
    assert len(merges) == 3
    assert [entry["add"] for entry in entries if entry.get("add", {}).get("deletionVector")] == []


def test_managed_by_a_catalog(tmp_path: Path) -> None:
    """delta-rs opens no table whose last commits are in a catalog: its log may end before them."""
    place = tmp_path / "managed"
    DeltaTable.create(place, table(log(versions=1, seed=1)[0]).schema)
    entry = place / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    features = {"readerFeatures": ["catalogManaged"], "writerFeatures": ["catalogManaged", "inCommitTimestamp"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7} | features
    changed = [action | {"protocol": protocol} if "protocol" in action else action for action in actions]
    entry.write_text("\n".join(map(json.dumps, changed)))
    with pytest.raises(TableUnreadableError, match="are in a catalog: give its name"):
        open_table(str(place), "depot")

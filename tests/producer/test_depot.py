"""A producer's depot while others read and maintain it."""

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import age, assert_whole
from windrow import Producer
from windrow.ingest.ingest import ingest
from windrow.runtime.maintenance import maintain
from windrow.runtime.wall_clock import WallClock


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """A depot that writes a checkpoint every second commit, and a ledger that does not exist yet."""
    world = World(tmp_path, clock)
    DeltaTable(world.depot).alter.set_table_properties({"delta.checkpointInterval": "2"})
    return world


def produced(world: World, embedded: EngineFactory) -> None:
    with Producer(world.depot, "p") as producer:
        for number in range(6):
            producer.send(key="k", type="t", event_time=NOW + number, received_at=NOW + number).result(60)


def ingested(world: World, embedded: EngineFactory) -> None:
    row = {"source": ["s"], "key": ["k"], "type": ["t"], "event_time": [NOW]}
    columns = {"event_time": "timestamp_micros(event_time)", "received_at": "timestamp_micros(event_time)"}
    for _ in range(6):
        file = Path(world.depot).parent / f"{uuid4().hex}.parquet"
        pq.write_table(pa.table(row | {"payload": [file.stem]}), file)
        writer = world.tables(embedded).writer
        assert [result.message_count for result in ingest(writer, [str(file)], columns)] == [1]


class TestLog:
    @pytest.mark.parametrize("append", [produced, ingested])
    def test_unread_versions_stay(self, world, embedded, append):
        """Writers of a depot write checkpoints, but delete no log entry, however old, because it may be unread."""
        append(world, embedded)
        age(world.depot)
        old = DeltaTable(world.depot).version()
        append(world, embedded)
        log = Path(world.depot, "_delta_log")
        assert {int(file.stem) for file in log.glob("*.json")} == set(range(DeltaTable(world.depot).version() + 1))
        assert any(int(file.name[:20]) > old for file in log.glob("*.checkpoint.parquet"))
        world.runner(embedded).once()
        assert world.history()[-1]["depot_version"] == DeltaTable(world.depot).version()
        assert_whole(world)

    def test_maintained_beside_a_producer(self, world, embedded):
        """Compaction and clean-up of the depot between two commits of a producer harm neither, and each message is
        read.
        """
        with Producer(world.depot, "p", max_commit_rows=1) as producer:
            for _ in range(3):
                times = {"event_time": NOW, "received_at": NOW}
                sent = [producer.send(key="k", type="t", **times) for _ in range(5)]
                opened = world.tables(embedded)
                maintain([opened.source], opened.ledger, WallClock().now(), "depot")
                assert producer.flush(60)
                assert all(future.result(0) for future in sent)
                world.runner(embedded).once()
            assert producer.last_sequence() == 15
        world.runner(embedded).once()
        assert_whole(world)

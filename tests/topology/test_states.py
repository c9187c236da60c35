"""What a function does with states, and what the harness gives it to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.conftest import EngineFactory
from windrow.errors import NotFound, TopologyRefused
from windrow.testing import Harness
from windrow.topology import Microbatch, Topology


def presence() -> Topology:
    """Return a topology of who is there: people come and go, and are asked for."""
    topology = Topology("presence", depots=["doors"], state="presence")

    def people(microbatch: Microbatch, what: str) -> pa.Table:
        rows = microbatch.messages.filter(pc.equal(microbatch.messages["type"], what))
        return pa.table({"name": rows["payload"]})

    @topology.pstate("there", key="name STRING", value="since BIGINT")
    def there(microbatch: Microbatch) -> pa.Table:
        state, came = microbatch.state("there"), people(microbatch, "come")
        came = came.append_column("since", pa.repeat(microbatch.id, came.num_rows))
        written = state.upsert(came, since=lambda old, new: pc.coalesce(old["since"], new["since"]))
        return pa.concat_tables([written, state.delete(people(microbatch, "go"))], promote_options="default")

    @topology.pstate("answers", key="number BIGINT, asked STRING", value="is_there BOOLEAN, since BIGINT")
    def answers(microbatch: Microbatch) -> pa.Table:
        state, asked = microbatch.state("there"), people(microbatch, "ask")
        number = pa.repeat(microbatch.id, asked.num_rows)
        found = {"is_there": state.has(asked), "since": state.lookup(asked)["since"]}
        return pa.table({"number": number, "asked": asked["name"]} | found)

    return topology


@pytest.mark.slow_on_spark
def test_keys_come_and_go(tmp_path: Path, engine: EngineFactory) -> None:
    """
    Keys that are deleted are gone from the next microbatch on, and come back as new ones; `has` and `lookup` tell of
    the states before the microbatch. To delete a key that is not there is nothing.
    """
    harness = Harness(presence(), tmp_path, engine=engine.name, session=engine.session)
    for said in ("come ada, come bob, ask ada", "come bob, go ada, ask ada, ask bob", "go ada, ask ada", "come ada"):
        pairs = [one.split() for one in said.split(", ")]
        harness.append([{"type": what, "payload": who} for what, who in pairs])
        harness.run()
    assert harness.state("there") == [{"name": "ada", "since": 4}, {"name": "bob", "since": 1}]
    assert [tuple(row.values()) for row in harness.state("answers")] == [
        (1, "ada", False, None),
        (2, "ada", True, 1),
        (2, "bob", True, 1),
        (3, "ada", False, None),
    ]


class TestUpsert:
    @pytest.mark.parametrize(
        ("given", "computed", "said"),
        [
            (["name", "count"], "counts", r"upsert: the state counted has no value 'counts'\n.*It has count, last\."),
            (["name", "count", "last"], "name", "upsert: the state counted has no value 'name'"),
            (["name", "count"], "count", r"the value 'last' of the state counted is missing\n.*last=lambda"),
        ],
        ids=["unknown", "key", "missing"],
    )
    def test_refused(self, tmp_path: Path, given: list[str], computed: str, said: str) -> None:
        """
        A name that is no value, or a value of which nothing is said, is refused in words of the state; nothing is
        written.
        """
        topology = Topology("refused", depots=["a"], state="refused")

        @topology.pstate("counted", key="name STRING", value="count BIGINT, last BIGINT")
        def counted(microbatch: Microbatch) -> pa.Table:
            new = pa.table({"name": ["x"], "count": [1], "last": [1]}).select(given)
            return microbatch.state("counted").upsert(new, **{computed: lambda _, new: new["count"]})

        harness = Harness(topology, tmp_path)
        harness.append([{"payload": "1"}])
        with pytest.raises(TopologyRefused, match=said):
            harness.run()
        assert harness.state("counted") == harness.history() == []

    def test_refused_of_frames(self, spark: Any) -> None:
        """
        So is a name that is no value where a function works with frames.
        """
        from pyspark.sql import functions as F

        from windrow.engine.spark.frames import frame_of
        from windrow.topology.frames import FrameState

        state = presence().states["there"]
        rows = pa.table({"name": ["ada"], "since": [1]}, state.columns)
        frames = FrameState(state, frame_of(spark, rows))
        with pytest.raises(TopologyRefused, match=r"upsert: the state there has no value 'sinse'\n.*It has since\."):
            frames.upsert(frames.rows, sinse=F.lit(1))


class TestHarness:
    def test_depot_of_other_rows(self, tmp_path: Path) -> None:
        """
        A depot that was made with columns of its own is read as its rows are, each version once.
        """
        topology = Topology("sums", depots=["sales"], state="sums")

        @topology.pstate("sums", key="shop STRING", value="total BIGINT")
        def sums(microbatch: Microbatch) -> pa.Table:
            assert microbatch.messages.column_names == ["shop", "amount", "version"]
            new = microbatch.messages.group_by("shop").aggregate([("amount", "sum")]).rename_columns(["shop", "total"])
            return microbatch.state("sums").upsert(
                new, total=lambda old, new: pc.add(pc.fill_null(old["total"], 0), new["total"])
            )

        harness = Harness(topology, tmp_path)
        harness.create(pa.schema([("shop", pa.string()), ("amount", pa.int64())]), "sales")
        assert harness.append([{"shop": "north", "amount": 3}, {"shop": "south", "amount": 4}], "sales") == 1
        harness.run()
        harness.append(pa.table({"shop": ["north", "north"], "amount": [5, 6]}))
        harness.run()
        assert harness.state("sums") == [{"shop": "north", "total": 14}, {"shop": "south", "total": 4}]
        assert [row["messages_read"] for row in harness.history()] == [2, 2]

    def test_wait_processed(self, tmp_path: Path) -> None:
        """
        To wait for as many messages as there are processes them; to wait for more is an error, behind which all are
        processed.
        """
        harness = Harness(presence(), tmp_path)
        harness.append([{"type": "come", "payload": name} for name in ("ada", "bob", "eve")])
        harness.wait_processed(3)
        assert len(harness.state("there")) == 3
        harness.append([{"type": "go", "payload": "eve"}])
        with pytest.raises(NotFound, match="4 messages were processed instead of 5"):
            harness.wait_processed(5)
        assert len(harness.state("there")) == 2

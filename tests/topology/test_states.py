"""What functions do with states, and what the harness gives to read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.factory import EngineFactory
from windrow.columnar.arrow import empty_table
from windrow.errors import NotFoundError, TopologyError
from windrow.testing import Harness
from windrow.topology import ArrowState, Microbatch, Topology
from windrow.topology.state import State


def presence() -> Topology:
    """Return a topology of who is there: people come and go, and are asked for."""
    topology = Topology("presence", depots=["doors"], states="presence")
    topology.state("there", key="name STRING", value="since BIGINT")
    topology.state("answers", key="number BIGINT, asked STRING", value="is_there BOOLEAN, came_in BIGINT")

    def people(microbatch: Microbatch, what: str) -> pa.Table:
        rows = microbatch.rows("doors")
        events = rows.filter(pc.equal(rows["type"], what))
        return pa.table({"name": events["payload"], "since": pa.repeat(microbatch.id, events.num_rows)})

    @topology.function
    def answer(microbatch: Microbatch) -> None:
        state, questions = microbatch.state("there"), people(microbatch, "ask")
        answers = {"is_there": state.has(questions), "came_in": state.get(questions)["since"]}
        microbatch.state("answers").put(pa.table({"number": questions["since"], "asked": questions["name"]} | answers))

    @topology.function
    def come_and_go(microbatch: Microbatch) -> None:
        state = microbatch.state("there")
        state.combine(people(microbatch, "come"), since=("since", "first"))
        state.delete(people(microbatch, "go"))

    return topology


@pytest.mark.slow_on_spark
def test_keys_come_and_go(tmp_path: Path, engine: EngineFactory) -> None:
    """Keys that are deleted are gone from the next function on, and come back as new ones; `has` and `get` tell of the
    states as the functions before have left them. To delete a key that is not there is nothing.
    """
    harness = Harness(presence(), tmp_path, engine=engine.name, session=engine.session)
    for script in ("come ada, come bob, ask ada", "come bob, go ada, ask ada, ask bob", "go ada, ask ada", "come ada"):
        pairs = [command.split() for command in script.split(", ")]
        harness.append([{"type": what, "payload": who} for what, who in pairs])
        harness.run()
    assert harness.state("there") == [{"name": "ada", "since": 4}, {"name": "bob", "since": 1}]
    assert [tuple(row.values()) for row in harness.state("answers")] == [
        (1, "ada", False, None),
        (2, "ada", True, 1),
        (2, "bob", True, 1),
        (3, "ada", False, None),
    ]
    read = harness.topology.read
    assert read("there", keys=[{"name": "bob"}, {"name": "eve"}]).to_pylist() == [{"name": "bob", "since": 1}]
    assert read("there", at=1).to_pylist() == [{"name": "ada", "since": 1}, {"name": "bob", "since": 1}]
    with pytest.raises(NotFoundError, match="no commit of microbatch 9"):
        read("there", at=9)
    with pytest.raises(TopologyError, match="has no key 'who'"):
        read("there", keys=[{"who": "bob"}])


def example() -> Topology:
    """Return a topology of two depots: counts of pairs, and the sum of all numbers."""
    topology = Topology("example", depots=["pairs", "numbers"], states="example")
    topology.state("pair_counts", key="first STRING, second STRING", value="count BIGINT")
    topology.state("global_sum", value="total BIGINT, seen MAP<STRING, BIGINT>", initial={"total": 1_000})

    @topology.function
    def count_pairs(microbatch: Microbatch) -> None:
        microbatch.state("pair_counts").combine(microbatch.rows("pairs"), count="count")

    @topology.function
    def add_numbers(microbatch: Microbatch) -> None:
        state, numbers = microbatch.state("global_sum"), microbatch.rows("numbers")
        state.combine(numbers, total=("number", "sum"))
        counted = microbatch.state("pair_counts").all()
        seen = [(first, count) for first, _, count in zip(*counted.to_pydict().values(), strict=True)]
        state.put(state.get().set_column(1, "seen", pa.array([seen[:1]], pa.map_(pa.string(), pa.int64()))))

    return topology


@pytest.mark.slow_on_spark
def test_two_depots(tmp_path: Path, engine: EngineFactory) -> None:
    """A microbatch has the rows of both depots, and each function sees what the one before it changed. A state without
    a key is one row, which begins with the initial values; a map is a value like others.
    """
    harness = Harness(example(), tmp_path, engine=engine.name, session=engine.session)
    harness.create(pa.schema([("first", pa.string()), ("second", pa.string())]), "pairs")
    harness.create(pa.schema([("number", pa.int64())]), "numbers")
    harness.append([{"first": "a", "second": "b"}, {"first": "a", "second": "b"}], "pairs")
    harness.append([{"number": 5}, {"number": 7}], "numbers")
    harness.run()
    assert harness.state("global_sum") == [{"total": 1_012, "seen": [("a", 2)]}]
    harness.append([{"number": 1}], "numbers")
    harness.run()
    assert harness.state("global_sum") == [{"total": 1_013, "seen": [("a", 2)]}]
    assert harness.state("pair_counts") == [{"first": "a", "second": "b", "count": 2}]
    assert [row["microbatch"] for row in harness.history()] == [1, 1, 2]


def wide(rows: int) -> Topology:
    """Return a topology that puts many keys in its first microbatch, and then adds to those that it is told."""
    topology = Topology("wide", depots=["keys"], states="wide")
    topology.state("counts", key="name STRING", value="count BIGINT")

    @topology.function
    def count(microbatch: Microbatch) -> None:
        names = microbatch.rows("keys").select(["payload"]).rename_columns(["name"])
        if microbatch.id == 1:
            names = pa.table({"name": [f"key-{number:07}" for number in range(rows)]})
        microbatch.state("counts").combine(names, count="count")

    return topology


class TestFiles:
    def test_few_are_read_and_written(self, tmp_path: Path) -> None:
        """Of a state of many files none is written again: a key that changes is a new row, one with the same values
        none.
        """
        harness = Harness(wide(300_000), tmp_path)
        harness.append([{"payload": "x"}])
        harness.run()
        before = files_of(harness)
        assert len(before) > 3
        harness.append([{"payload": "key-0150000"}])
        harness.restart()
        harness.run()
        assert not before - files_of(harness)
        assert rows_of(harness) == 300_001
        rows = harness.topology.read("counts", keys=[{"name": "key-0150000"}, {"name": "key-0150001"}])
        assert rows["count"].to_pylist() == [2, 1]

    @pytest.mark.ci
    def test_keys_that_come_later(self, tmp_path: Path) -> None:
        """A state that grows by keys of all ranges keeps files whose ranges hardly overlap, and loses nothing."""
        harness = Harness(wide(1), tmp_path)
        expected = {"key-0000000"}
        for number in range(40):
            names = [f"{step}-{number}-{'x' * 200}" for step in range(400)]
            expected |= set(names) if number else set()
            harness.append([{"payload": name} for name in names])
            harness.run()
        rows = harness.topology.read("counts")
        assert set(rows["name"].to_pylist()) == expected
        assert pc.sum(rows["count"]).as_py() == len(expected)
        assert len(files_of(harness)) < 40


def rows_of(harness: Harness) -> int:
    """Return how many rows the files of the state `counts` have, whether they count or not."""
    added = pa.table(DeltaTable(harness.topology.location).get_add_actions(flatten=True))
    return pc.sum(added.filter(pc.equal(added["partition.state"], "counts"))["num_records"]).as_py()


def files_of(harness: Harness) -> set[str]:
    """Return the live files of the state `counts`."""
    added = pa.table(DeltaTable(harness.topology.location).get_add_actions(flatten=True))
    return set(added.filter(pc.equal(added["partition.state"], "counts"))["path"].to_pylist())


class TestDepots:
    def test_of_other_rows(self, tmp_path: Path) -> None:
        """A depot that was made with columns of its own is read as its rows are, each version once."""
        topology = Topology("sums", depots=["sales"], states="sums")
        topology.state("sums", key="shop STRING", value="total BIGINT")

        @topology.function
        def add(microbatch: Microbatch) -> None:
            assert microbatch.rows("sales").column_names == ["shop", "amount", "version"]
            microbatch.state("sums").combine(microbatch.rows("sales"), total=("amount", "sum"))

        harness = Harness(topology, tmp_path)
        harness.create(pa.schema([("shop", pa.string()), ("amount", pa.int64())]), "sales")
        assert harness.append([{"shop": "north", "amount": 3}, {"shop": "south", "amount": 4}], "sales") == 1
        harness.run()
        harness.append(pa.table({"shop": ["north", "north"], "amount": [5, 6]}))
        harness.run()
        assert harness.state("sums") == [{"shop": "north", "total": 14}, {"shop": "south", "total": 4}]
        assert [row["messages_read"] for row in harness.history()] == [2, 2]

    def test_wait_processed(self, tmp_path: Path) -> None:
        """To wait for as many messages as there are processes them; to wait for more is an error, behind which all are
        processed.
        """
        harness = Harness(presence(), tmp_path)
        harness.append([{"type": "come", "payload": name} for name in ("ada", "bob", "eve")])
        harness.wait_processed(3)
        assert len(harness.state("there")) == 3
        harness.append([{"type": "go", "payload": "eve"}])
        with pytest.raises(NotFoundError, match=r"4 of 5 messages were processed in 0\.2 seconds"):
            harness.wait_processed(5, timeout=0.2)
        assert len(harness.state("there")) == 2


STATE = State(
    "s",
    pa.schema([("k", pa.int64())]),
    pa.schema([("sums", pa.int64()), ("least", pa.int64()), ("greatest", pa.int64()), ("rows", pa.int64()),
               ("given", pa.int64()), ("newest", pa.int64()), ("oldest", pa.int64())]),
)  # fmt: skip
ROWS = st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(-9, 9)), max_size=8)


@settings(max_examples=100)
@given(st.lists(ROWS, max_size=4))
def test_combine(batches: list[list[tuple[int, int | None]]]) -> None:
    """However rows are spread over calls, `combine` has for each key what one pass over all of them has."""
    stored = empty_table(pa.schema([("id", pa.string()), *STATE.columns]))
    state = ArrowState(STATE, lambda _: stored, lambda: 0)
    for batch in batches:
        rows = pa.table(
            {
                "k": pa.array([key for key, _ in batch], pa.int64()),
                "v": pa.array([value for _, value in batch], pa.int64()),
            }
        )
        state.combine(
            rows, sums=("v", "sum"), least=("v", "min"), greatest=("v", "max"), rows="count", given=("v", "count"),
            oldest=("v", "first"), newest=("v", "last"),
        )  # fmt: skip
    flat = [row for batch in batches for row in batch]
    expected: dict[int, dict[str, Any]] = {}
    for key in sorted({key for key, _ in flat}):
        values = [value for row_key, value in flat if row_key == key and value is not None]
        expected[key] = {
            "k": key,
            "sums": sum(values) if values else None,
            "least": min(values, default=None),
            "greatest": max(values, default=None),
            "rows": sum(row_key == key for row_key, _ in flat),
            "given": len(values),
            "newest": values[-1] if values else None,
            "oldest": values[0] if values else None,
        }
    combined = {row["k"]: row for row in state.all().to_pylist()}
    assert combined == expected


BIG = 2**63 - 1


@pytest.mark.parametrize(
    ("amounts", "total"),
    [([[2**62, 2**62]], None), ([[2**62], [2**62]], None), ([[BIG, 1, -1]], BIG), ([[-BIG], [BIG, 5]], 5)],
    ids=["one microbatch", "two", "it fits in the end", "it fits with the value before"],
)
def test_sums_never_wrap(tmp_path: Path, amounts: list[list[int]], total: int | None) -> None:
    """A sum that does not fit its type is refused, in one microbatch and in several; only the sum itself must fit."""
    harness = Harness(summing("amount BIGINT"), tmp_path)
    harness.create(pa.schema([("amount", pa.int64())]))
    for rows in amounts[:-1]:
        harness.append([{"amount": amount} for amount in rows])
        harness.run()
    harness.append([{"amount": amount} for amount in amounts[-1]])
    if total is None:
        with pytest.raises(TopologyError, match="cannot compute total"):
            harness.run()
    else:
        harness.run()
        assert harness.state("sums")[0]["total"] == total


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("TIMESTAMP", [datetime(2026, 1, day, tzinfo=UTC) for day in (2, 3, 1)]),
        ("DATE", [date(2026, 1, day) for day in (2, 3, 1)]),
        ("DECIMAL(4, 1)", [Decimal("1.5"), Decimal("2.5"), Decimal("-7.0")]),
        ("TINYINT", [1, 2, -100]),
        ("BOOLEAN", [True, False, True]),
        ("STRING", ["b", "c", "a"]),
    ],
)
def test_least_and_greatest(tmp_path: Path, type_: str, values: list[Any]) -> None:
    """The least and the greatest value are those of all microbatches, for each type that has an order."""
    harness = Harness(extremes(type_), tmp_path)
    kind = extremes(type_).states["extremes"].values.field("least").type
    harness.create(pa.schema([("amount", kind)]))
    for value in values:
        harness.append(pa.table({"amount": pa.array([value], kind)}))
        harness.run()
    assert harness.state("extremes") == [{"least": min(values), "greatest": max(values)}]


def summing(column: str) -> Topology:
    """Return a topology that sums a column."""
    topology = Topology("summing", depots=["numbers"], states="sums")
    topology.state("sums", value="total BIGINT")

    @topology.function
    def add(microbatch: Microbatch) -> None:
        microbatch.state("sums").combine(microbatch.rows("numbers"), total=(column.split(maxsplit=1)[0], "sum"))

    return topology


def extremes(type_: str) -> Topology:
    """Return a topology that keeps the least and the greatest value of a type."""
    topology = Topology("extremes", depots=["numbers"], states="extremes")
    topology.state("extremes", value=f"least {type_}, greatest {type_}")

    @topology.function
    def compare(microbatch: Microbatch) -> None:
        rows = microbatch.rows("numbers")
        microbatch.state("extremes").combine(rows, least=("amount", "min"), greatest=("amount", "max"))

    return topology

"""The rows of a state under the first columns of its key."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import one_in
from tests.engine.factory import EngineFactory
from windrow.errors import TableUnreadableError, TopologyError
from windrow.ledger.files import LedgerFiles
from windrow.ledger.pruning import Extent
from windrow.model.id_filter import IdFilter
from windrow.testing import Harness
from windrow.topology import ArrowState, Microbatch, SparkMicrobatch, Topology

ALIKE = ["a", "a-1", "a/b", "a%", "a%2Fb", "a\0", "a\n", "", "b"]
Do = Callable[[Any], None]
Key = tuple[str, int, int]


def rates(do: Do, parameter: type = Microbatch) -> Topology:
    """Return a topology whose microbatches do what a test says with a state of three key columns."""
    topology = Topology("rates", depots=["steps"], states="rates")
    topology.state("rates", key="device STRING, day DATE, hour INT", value="rate BIGINT", initial={"rate": 9})
    topology.state("total", value="rate BIGINT")

    def act(microbatch: Any) -> None:
        do(microbatch)

    act.__annotations__ = {"microbatch": parameter, "return": None}
    topology.function(act)
    return topology


def rows(*keys: Key, rate: int = 1) -> pa.Table:
    """Return rows of the state for a device, a day of a month and an hour each."""
    devices, days, hours = ([key[at] for key in keys] for at in range(3))
    columns = {"device": pa.array(devices, pa.string()), "day": dates(days), "hour": pa.array(hours, pa.int32())}
    return pa.table(columns | {"rate": pa.array([rate] * len(keys), pa.int64())})


def dates(days: list[int]) -> pa.Array:
    """Return days of a month."""
    return pa.array([date(2026, 1, day) for day in days], pa.date32())


def part(device: str, *more: int) -> pa.Table:
    """Return the first columns of a key."""
    return rows((device, *more, 1, 1)[:3]).select(["device", "day", "hour"][: 1 + len(more)])


def rows_by_key(table: pa.Table) -> dict[Key, int]:
    """Return rates by key. Each key is there once."""
    listed = [((row["device"], row["day"].day, row["hour"]), row["rate"]) for row in table.to_pylist()]
    assert len(dict(listed)) == len(listed)
    return dict(listed)


class Steps:
    """A topology that does another thing in each microbatch."""

    def __init__(self, directory: Path, parameter: type = Microbatch, **values: Any) -> None:
        self._do: list[Do] = []
        self.harness = Harness(rates(self._act, parameter), directory, **values)

    def do(self, what: Do) -> None:
        """Run a microbatch that does this."""
        self._do.append(what)
        self.harness.append([{"payload": "x"}])
        self.harness.run()

    def put(self, table: pa.Table) -> None:
        """Put rows in a microbatch of its own."""
        self.do(lambda microbatch: microbatch.state("rates").put(table))

    def _act(self, microbatch: Any) -> None:
        self._do[-1](microbatch)


@pytest.mark.slow_on_spark
def test_rows_under_a_part(tmp_path: Path, engine: EngineFactory) -> None:
    """`all` and `read` return the rows under the first columns of keys or under whole keys: those that are there, with
    what the microbatch has changed so far.
    """
    steps = Steps(tmp_path, engine=engine.name, session=engine.session)
    steps.put(rows(("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("b", 1, 1), ("c", 1, 1)))

    def look(microbatch: Microbatch) -> None:
        state = microbatch.state("rates")
        assert rows_by_key(state.all(part("a", 1))) == {("a", 1, 1): 1, ("a", 1, 2): 1}
        state.put(rows(("a", 1, 2), ("a", 3, 1), ("d", 1, 1), rate=2))
        state.delete(rows(("a", 2, 1), ("b", 1, 1)))
        under_a = {("a", 1, 1): 1, ("a", 1, 2): 2, ("a", 3, 1): 2}
        assert rows_by_key(state.all(part("a"))) == under_a
        both = pa.concat_tables([part("b"), part("d"), part("d"), part("e")])
        assert rows_by_key(state.all(both)) == {("d", 1, 1): 2}
        assert rows_by_key(state.all(part("a", 3, 1))) == {("a", 3, 1): 2}
        assert rows_by_key(state.all(part("a").slice(1))) == {}
        assert state.get(rows(("a", 1, 1), ("a", 2, 1)))["rate"].to_pylist() == [1, 9]
        assert rows_by_key(state.all()) == under_a | {("c", 1, 1): 1, ("d", 1, 1): 2}

    steps.do(look)
    read = steps.harness.topology.read
    assert rows_by_key(read("rates", keys=[{"device": "a"}])) == {("a", 1, 1): 1, ("a", 1, 2): 2, ("a", 3, 1): 2}
    day = date(2026, 1, 1)
    assert rows_by_key(read("rates", keys=[{"device": "a", "day": day}, {"device": "b", "day": day}], at=1)) == {
        ("a", 1, 1): 1,
        ("a", 1, 2): 1,
        ("b", 1, 1): 1,
    }
    assert rows_by_key(read("rates", keys=[{"device": "a", "day": day, "hour": 2}])) == {("a", 1, 2): 2}
    assert rows_by_key(read("rates", keys=[])) == {}


@pytest.mark.slow_on_spark
@pytest.mark.parametrize("many", [1, 0], ids=["few", "many"])
def test_neighbours(tmp_path: Path, engine: EngineFactory, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that begin alike, or have the signs by which ids are made, are told apart, one part or many."""
    monkeypatch.setattr("windrow.model.id_filter.MANY", many)
    if engine.session is not None:
        monkeypatch.setattr("windrow.ledger.open_batches.MANY", many)
    steps = Steps(tmp_path, engine=engine.name, session=engine.session)
    steps.put(rows(*((device, 1, 1) for device in ALIKE)))

    def look(microbatch: Microbatch) -> None:
        for device in ALIKE:
            assert rows_by_key(microbatch.state("rates").all(part(device))) == {(device, 1, 1): 1}

    steps.do(look)
    for device in ALIKE:
        assert rows_by_key(steps.harness.topology.read("rates", keys=[{"device": device}])) == {(device, 1, 1): 1}
    three = [{"device": device} for device in ALIKE[:3]]
    assert rows_by_key(steps.harness.topology.read("rates", keys=three)) == {(device, 1, 1): 1 for device in ALIKE[:3]}


@pytest.mark.parametrize(
    ("keys", "error_message"),
    [
        (part("a", 1).select(["day"]), "all of the state rates lacks the column 'device'"),
        (part("a", 1, 1).select(["device", "hour"]), "lacks the column 'day'"),
        (pa.table({"other": [1]}), "lacks the column 'device'"),
        (pa.table({"device": pa.array([None], pa.string())}), "whose key 'device' is NULL"),
        (pa.table({"device": ["a"], "day": ["no day"]}), "has values of other types"),
        ({"device": "a"}, "got dict"),
    ],
)
def test_refused_parts(tmp_path: Path, keys: Any, error_message: str) -> None:
    """A part that is not the first columns of the key is refused, as are NULL, other types, and what is no table."""
    steps = Steps(tmp_path)
    with pytest.raises(TopologyError, match=error_message):
        steps.do(lambda microbatch: microbatch.state("rates").all(keys))


def test_refused_in_read(tmp_path: Path) -> None:
    """`read` refuses the same parts, keys with different parts, and keys of a state that has none."""
    steps = Steps(tmp_path)
    steps.put(rows(("a", 1, 1)))
    read, day = steps.harness.topology.read, date(2026, 1, 1)
    for keys, error_message in (
        ([{"day": day}], "read of the state rates lacks the column 'device'"),
        ([{"device": None}], "whose key 'device' is NULL"),
        ([{}], "lacks the column 'device'"),
        ([{"device": "a"}, {"device": "a", "day": day}], "whose key 'day' is NULL"),
    ):
        with pytest.raises(TopologyError, match=error_message):
            read("rates", keys=keys)
    with pytest.raises(TopologyError, match="the state has none"):
        read("total", keys=[{}])
    with pytest.raises(TopologyError, match="the state has none"):
        steps.do(lambda microbatch: microbatch.state("total").all(pa.table({"device": ["a"]})))


class TestFrames:
    @pytest.mark.ci
    @pytest.mark.slow_unless({"few_rows": 20_000})
    @pytest.mark.parametrize("few_rows", [20_000, 1], ids=["few", "many"])
    def test_rows_under_a_part(
        self, spark: Any, tmp_path: Path, few_rows: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`all` of a frame returns the rows under the first columns of keys, whether these are few or many; NULL in
        them is refused.
        """
        monkeypatch.setattr("windrow.topology.frame_state.FEW_ROWS", few_rows)
        steps = Steps(tmp_path, SparkMicrobatch, engine="spark", session=spark)
        frame = spark.createDataFrame

        def keys(*values: tuple[Any, ...]) -> Any:
            columns = ["device STRING", "day STRING", "hour INT"][: len(values[0])]
            return frame(list(values), ", ".join(columns))

        steps.put(frame(rows(("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("a-1", 1, 1), ("b", 1, 1)).to_pandas()))

        def look(microbatch: SparkMicrobatch) -> None:
            state = microbatch.state("rates")
            state.put(frame(rows(("a", 1, 2), ("a", 3, 1), ("d", 1, 1), rate=2).to_pandas()))
            state.delete(keys(("a", "2026-01-02", 1), ("b", "2026-01-01", 1)))
            under_a = {("a", 1, 1): 1, ("a", 1, 2): 2, ("a", 3, 1): 2}
            assert rows_by_key(state.all(keys(("a",))).toArrow()) == under_a
            assert rows_by_key(state.all(keys(("a",), ("a",), ("b",), ("d",))).toArrow()) == under_a | {("d", 1, 1): 2}
            assert rows_by_key(state.all(keys(("a", "2026-01-03"), ("b", "2026-01-01"))).toArrow()) == {("a", 3, 1): 2}
            assert rows_by_key(state.all(keys(("a", "2026-01-01", 1), ("x", "2026-01-01", 1))).toArrow()) == {
                ("a", 1, 1): 1
            }
            with pytest.raises(TopologyError, match="lacks the column 'device'"):
                state.all(keys(("a", "2026-01-01")).select("day"))
            with pytest.raises(TopologyError, match="NULL"):
                state.all(keys(("a",), ("b",), ("c",), (None,)))

        steps.do(look)


@pytest.mark.slow_on_spark
@pytest.mark.parametrize("frames", [False, True], ids=["tables", "frames"])
def test_other_files_are_not_read(
    tmp_path: Path, engine: EngineFactory, frames: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read under a part needs no file that cannot have it."""
    if frames and engine.session is None:
        pytest.skip("only Spark has frames")
    monkeypatch.setattr("windrow.ledger.files.SMALL_BYTES", 0)
    writing = Steps(tmp_path, engine=engine.name, session=engine.session)
    for device in ("a", "b", "c"):
        writing.put(rows((device, 1, 1)))
    location = writing.harness.topology.location
    for number in (1, 3):
        [path] = added(location, number)
        path.rename(path.with_suffix(".gone"))

    def look(microbatch: Any) -> None:
        keys = engine.session.createDataFrame([("b",)], "device STRING") if frames else part("b")
        under = microbatch.state("rates").all(keys)
        assert rows_by_key(under.toArrow() if frames else under) == {("b", 1, 1): 1}

    parameter = SparkMicrobatch if frames else Microbatch
    Steps(tmp_path, parameter, engine=engine.name, session=engine.session).do(look)
    assert rows_by_key(writing.harness.topology.read("rates", keys=[{"device": "b"}])) == {("b", 1, 1): 1}
    with pytest.raises(TableUnreadableError):
        writing.harness.topology.read("rates", keys=[{"device": "a"}])


def added(location: str, microbatch: int) -> list[Path]:
    """Return the files of the state that a microbatch added."""
    entries = [
        [json.loads(line) for line in entry.read_text().splitlines()]
        for entry in sorted(Path(location, "_delta_log").glob("*.json"))
    ]
    paths = [
        [action["add"]["path"] for action in entry if "state=rates" in str(action.get("add"))] for entry in entries
    ]
    return [Path(location, unquote(path)) for path in [added for added in paths if added][microbatch - 1]]


KEYS = list(itertools.product(["a", "a-1", "b/"], [1, 2], [1, 2]))
CHANGES = st.tuples(st.sampled_from(["put", "delete"]), st.lists(st.sampled_from(KEYS), unique=True, max_size=4))
LOOKS = st.tuples(st.sampled_from(["all", "get"]), st.lists(st.sampled_from(KEYS), max_size=2), st.integers(1, 3))
MICROBATCHES = st.lists(st.lists(CHANGES | LOOKS, min_size=1, max_size=6), min_size=1, max_size=4)
FOLDS = st.tuples(st.integers(1, 3), st.sampled_from([1, 1_000]))


@settings(one_in(2))
@given(microbatches=MICROBATCHES, folds=FOLDS)
def test_like_a_dict(
    tmp_path_factory: pytest.TempPathFactory, microbatches: list[list[Any]], folds: tuple[int, int]
) -> None:
    """Whatever microbatches put and delete, in whichever order they look, and whenever rows are folded: under a part
    are the rows that a dict has, in the microbatch and for readers.
    """
    model: dict[Key, int] = {}
    steps = Steps(tmp_path_factory.mktemp("parts"), fold_commits=folds[0], fold_rows=folds[1])
    rates = itertools.count()
    for actions in microbatches:
        steps.do(lambda microbatch, actions=actions: act(microbatch.state("rates"), model, actions, rates))
    for key, columns in itertools.product(KEYS[::5], (1, 2)):
        [named] = rows(key).select(range(columns)).to_pylist()
        assert rows_by_key(steps.harness.topology.read("rates", keys=[named])) == under(model, [key], columns)


def act(state: ArrowState, model: dict[Key, int], actions: list[Any], rates: Iterator[int]) -> None:
    """Change state and model, and compare what is under some keys."""
    for what, keys, *columns in actions:
        if what == "put":
            new = next(rates)
            state.put(rows(*keys, rate=new))
            model.update(dict.fromkeys(keys, new))
        elif what == "delete":
            state.delete(rows(*keys))
            for key in keys:
                model.pop(key, None)
        elif what == "get":
            assert state.get(rows(*keys))["rate"].to_pylist() == [model.get(key, 9) for key in keys]
        else:
            assert rows_by_key(state.all(rows(*keys).select(range(*columns)))) == under(model, keys, *columns)


def under(model: dict[Key, int], keys: list[Key], columns: int) -> dict[Key, int]:
    """Return what a model has under the first columns of some keys."""
    return {key: rate for key, rate in model.items() if any(key[:columns] == selected[:columns] for selected in keys)}


IDS = st.lists(st.tuples(st.sampled_from(ALIKE), st.sampled_from(ALIKE)), min_size=1, max_size=12)


@given(IDS, st.lists(st.sampled_from(ALIKE), max_size=3), st.integers(1, 4))
def test_no_file_with_a_row_is_skipped(keys: list[tuple[str, str]], parts: list[str], size: int) -> None:
    """A file that has a row under a part is read, and nothing but these rows is selected."""
    state = rates(lambda _: None).states["rates"]
    named = pa.table({"device": [key[0] for key in keys], "day": [key[1] for key in keys], "hour": [1] * len(keys)})
    table = named.append_column("id", state.ids(named)).sort_by("id")
    id_filter = IdFilter(state.ids(pa.table({"device": pa.array(parts, pa.string())}), 1), 3)
    assert set(id_filter.among(table)["device"].to_pylist()) == set(parts) & {key[0] for key in keys}
    for start in range(0, table.num_rows, size):
        piece = table.slice(start, size)
        needed = bool(pc.any(pc.is_in(piece["device"], pa.array(parts, pa.string()))).as_py())
        assert Extent.of_rows(piece).may_hold(id_filter.ranges()) >= needed


def test_few_files_are_read(tmp_path: Path) -> None:
    """Of a state of many files a microbatch reads those that can have the part."""
    steps, paths = Steps(tmp_path), list[str]()
    many = pa.array([f"device-{number // 1_000:04}" for number in range(300_000)])
    hours = pa.array([number % 1_000 for number in range(300_000)], pa.int32())
    days = pa.repeat(dates([1])[0], 300_000)
    steps.put(pa.table({"device": many, "day": days, "hour": hours, "rate": hours.cast(pa.int64())}))
    steps.harness.restart()

    def content(self: LedgerFiles, path: str, columns: Any = None) -> pa.Table:
        paths.append(path)
        return read(self, path, columns)

    def look(microbatch: Microbatch) -> None:
        assert microbatch.state("rates").all(part("device-0150")).num_rows == 1_000

    read = LedgerFiles._content
    with patch.object(LedgerFiles, "_content", content):
        steps.do(look)
    assert 1 <= len([path for path in paths if "state=rates" in path]) <= 2


@pytest.mark.slow
def test_many_keys_of_many_versions(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Spark tries to read a state whole, because many keys are asked for, versions that do not count do not make
    it seem smaller than it is.
    """
    monkeypatch.setattr("windrow.ledger.open_batches.FEW_ROWS", 2)
    steps = Steps(tmp_path, engine="spark", session=spark)
    keys = [("a", day, hour) for day in (1, 2, 3) for hour in range(10)]
    for rate in (1, 2, 3):
        steps.put(rows(*keys, rate=rate))

    def look(microbatch: Microbatch) -> None:
        assert microbatch.state("rates").get(rows(*keys[:12]))["rate"].to_pylist() == [3] * 12

    steps.do(look)

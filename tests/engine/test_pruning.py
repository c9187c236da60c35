import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.arrow import times_to_numbers
from windrow.ledger.pruning import Extent, FilePruner
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.open_batches import BatchFilter

NAMES = st.sampled_from(["", "a", "a/", "a%", "b", "é", "ab", "a\0"])
SOURCES = st.none() | NAMES
BATCHES = st.lists(st.tuples(SOURCES, NAMES, st.integers(0, 20)), min_size=1, max_size=12)
STREAMS = st.lists(st.tuples(SOURCES, NAMES), max_size=3)
CLOCKS = st.dictionaries(SOURCES, st.integers(-5, 25), max_size=4)


def rows(batches: list[tuple[str | None, str, int]]) -> pa.Table:
    """Return open batches in the order of their ids; a number is where the window begins and ends."""
    source, key, number = (pa.array(column) for column in zip(*batches, strict=True))
    source, key = source.cast(pa.string()), key.cast(pa.string())
    ids = tables.identifier(tables.BATCH_ID, source, key, number)
    end = number.cast(pa.timestamp("us", "UTC"))
    return pa.table({"id": ids, "source": source, "key": key, "window_end": end}).sort_by("id")


def extent(part: pa.Table) -> Extent:
    """Return what the log says of a file with these rows."""
    statistics = {}
    for name in ("id", "source", "window_end"):
        bounds = pc.min_max(times_to_numbers(part)[name])
        statistics |= {f"min.{name}": bounds["min"].as_py(), f"max.{name}": bounds["max"].as_py()}
        statistics[f"null_count.{name}"] = part[name].null_count
    return Extent.of(statistics)


def wanted(streams: list[tuple[str | None, str]], clocks: dict[str | None, int]) -> BatchFilter:
    """Return what some streams and clocks want."""
    named = pa.table(
        {
            "source": pa.array([s for s, _ in streams], pa.string()),
            "key": pa.array([k for _, k in streams], pa.string()),
        }
    )
    passed = Floors(pa.array(list(clocks), pa.string()), np.array(list(clocks.values()), np.int64))
    return BatchFilter(lambda: named, passed)


class TestReach:
    @given(BATCHES, STREAMS, CLOCKS, st.integers(1, 4))
    def test_nothing_wanted_is_passed_over(self, batches, streams, clocks, size) -> None:
        """Each file is read that holds a batch of a stream with messages, or one whose window a clock has passed."""
        reach, table = FilePruner(wanted(streams, clocks)), rows(batches)
        for start in range(0, table.num_rows, size):
            part = table.slice(start, size)
            needed = any(
                (row["source"], row["key"]) in streams
                or clocks.get(row["source"], -1) >= row["window_end"].timestamp() * 1e6 - 0.5
                for row in part.to_pylist()
            )
            assert reach.may_hold(extent(part)) or not needed

    def test_other_files_are_passed_over(self) -> None:
        """A file that ends before the stream, or begins behind it, is not read when no clock has come to its
        windows.
        """
        table = rows([("s", f"key{number}", 10) for number in range(9)])
        reach = FilePruner(wanted([("s", "key4")], {"s": 9, "t": 99}))
        assert [reach.may_hold(extent(table.slice(start, 3))) for start in (0, 3, 6)] == [False, True, False]
        assert FilePruner(wanted([], {"s": 10})).may_hold(extent(table))

    def test_streams_that_are_not_known(self) -> None:
        """Where only the executors know the streams, every file is read; so is one of which the log says nothing."""
        part = extent(rows([("s", "key", 10)]))
        assert FilePruner(BatchFilter(lambda: None, Floors.empty())).may_hold(part)
        assert FilePruner(wanted([], {})).may_hold(Extent.of({}))
        assert not FilePruner(wanted([], {})).may_hold(part)

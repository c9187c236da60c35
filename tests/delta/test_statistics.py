import json
from datetime import datetime

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.arrow import TIME
from windrow.delta.statistics import MAX_CHARACTERS, statistics

TEXTS = st.lists(st.none() | st.text(max_size=6), min_size=1)
TIMES = st.lists(st.none() | st.integers(-(2**45), 2**45), min_size=1)
NUMBERS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1)


def statistics_of(column: pa.Array) -> dict[str, object]:
    """Return the statistics of one column by kind; without statistics, only the number of rows."""
    document = json.loads(statistics(pa.table({"it": column})))
    rows = document.pop("numRecords")
    assert rows == len(column)
    return {kind: value["it"] for kind, value in document.items() if "it" in value}


class TestBounds:
    @given(TEXTS)
    def test_texts(self, values: list[str | None]) -> None:
        """The least and the greatest text are those that occur, in the order of their UTF-8."""
        self.check(pa.array(values, pa.string()), [value for value in values if value is not None], str.encode)

    @given(NUMBERS)
    def test_numbers(self, values: list[int | None]) -> None:
        """The least and the greatest number are those that occur."""
        self.check(pa.array(values, pa.int64()), [value for value in values if value is not None], int)

    @given(TIMES)
    def test_times(self, values: list[int | None]) -> None:
        """The least and the greatest time are those that occur, to the microsecond."""
        column = pa.array(values, TIME)
        statistics = statistics_of(column)
        if "minValues" in statistics:
            for kind in ("minValues", "maxValues"):
                statistics[kind] = datetime.fromisoformat(str(statistics[kind]))
        occur = [value for value in column.to_pylist() if value is not None]
        assert statistics == self.expected(occur, occur, column.null_count)

    def check(self, column, occur, order) -> None:
        """Compare the statistics with the values."""
        assert statistics_of(column) == self.expected(occur, sorted(occur, key=order), column.null_count)

    @staticmethod
    def expected(occur, ordered, nulls) -> dict[str, object]:
        """Return the expected statistics."""
        if not occur:
            return {"nullCount": nulls}
        return {
            "minValues": min(ordered) if not isinstance(ordered[0], str) else ordered[0],
            "maxValues": max(ordered) if not isinstance(ordered[0], str) else ordered[-1],
            "nullCount": nulls,
        }


class TestNothing:
    def test_what_cannot_be_said(self) -> None:
        """Long texts, times outside the calendar and other types get no bounds, so such a file is always read; nested
        columns get no statistics.
        """
        far = pa.array([0, 2**62, None], TIME)
        for column in (pa.array(["a", "b" * (MAX_CHARACTERS + 1)]), far, pa.array([1.5]), pa.array([b"a"])):
            assert statistics_of(column) == {"nullCount": column.null_count}
        assert statistics_of(pa.array([[1]])) == {}
        assert statistics_of(pa.array(["a" * MAX_CHARACTERS]))["maxValues"] == "a" * MAX_CHARACTERS

"""Bins and ticks that hold every value and read easily."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from windrow.reading.plot import bins

CENTURY = 100 * 365 * 86_400_000


class TestEdges:
    @given(some.lists(some.integers(0, 10**12), min_size=1))
    def test_counts(self, values):
        """Every count lies in one of a few bins, of which each has a width."""
        array = np.array(values)
        edges = bins.counts(array).at
        assert edges[0] <= array.min() <= array.max() < edges[-1]
        assert (np.diff(edges) > 0).all()
        assert len(edges) <= bins.BINS + 2

    @given(
        some.integers(-CENTURY, CENTURY), some.integers(0, CENTURY), some.lists(some.integers(1, CENTURY), max_size=2)
    )
    def test_times(self, low, span, borders):
        """Every time lies in one of a few bins, of which each has a width, and each border between two bins."""
        edges = bins.times(low, low + span, [border for border in borders if low <= border <= low + span]).at
        assert edges[0] <= low <= low + span < edges[-1]
        assert (np.diff(edges) > 0).all()
        assert len(edges) <= bins.BINS + 15
        assert {border for border in borders if low <= border <= low + span} <= set(edges.tolist())

    def test_even(self):
        """Even edges are round numbers."""
        assert bins.even(2_992, 14_999).at.tolist() == list(range(2_500, 15_001, 500))


class TestStacked:
    @given(some.lists(some.tuples(some.integers(0, 60), some.sampled_from("abc"), some.integers(1, 9)), min_size=1))
    def test_nothing_is_lost(self, rows):
        """The weights of each name come out as they went in, and stacks have neither gaps nor overlaps."""
        values, names, weights = (np.array(column) for column in zip(*rows, strict=True))
        order = [name for name in "cab" if name in names]
        table = bins.stacked(values, names, order, weights, bins.counts(values)).to_pylist()
        for name in order:
            assert sum(row["count"] for row in table if row["name"] == name) == weights[names == name].sum()
        for low in {row["low"] for row in table}:
            stack = sorted((row["base"], row["top"], order.index(row["name"])) for row in table if row["low"] == low)
            assert [base for base, *_ in stack] == [0, *(top for _, top, _ in stack[:-1])]
            assert [place for *_, place in stack] == sorted(place for *_, place in stack)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0"),
        (0.25, "0.25 ms"),
        (250, "250 ms"),
        (-1_000, "\N{MINUS SIGN}1 s"),
        (7_230, "7.23 s"),
        (3_600_000, "1 h"),
    ],
)
def test_time_text(milliseconds, text):
    """Times are said in the unit in which they are shortest."""
    assert bins.time_text(milliseconds) == text

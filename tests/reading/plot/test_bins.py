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
        assert len(edges) <= bins.BINS + 15

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


@given(some.lists(some.tuples(some.integers(0, 60), some.sampled_from("abc"), some.integers(1, 9)), min_size=1))
def test_nothing_is_lost(rows):
    """The weights of each name come out as they went in, each in a bin that holds its value."""
    values, names, weights = (np.array(column) for column in zip(*rows, strict=True))
    table = bins.count_by_bin(values, names, weights, bins.counts(values))
    for name in set(names.tolist()):
        assert sum(row["count"] for row in table if row["name"] == name) == weights[names == name].sum()
    for value, name in zip(values, names, strict=True):
        assert any(row["low"] <= value < row["high"] for row in table if row["name"] == name)


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

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.order import group_by_id, list_tied_slots, number_ties, pairs, positions_in, sort_groups

FEW = st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 5), st.integers(0, 3)), max_size=120)


@st.composite
def many(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Rows of a few groups, enough for several blocks and merges, slightly or very much out of order."""
    random, size = Random(draw(st.integers(0, 10**6))), draw(st.sampled_from((23, 24, 25, 47, 48, 49, 97, 200, 400)))
    groups, disorder = draw(st.integers(1, 2)), draw(st.sampled_from((0, 3, 30, 500)))
    return spread(random, size, groups, disorder)


def spread(random: Random, size: int, groups: int, disorder: int) -> list[tuple[int, int, int]]:
    """Nearly sorted rows, five per value."""
    moved = [at + random.randint(-disorder, disorder) for at in range(size)]
    return [(random.randrange(groups), at // 5, random.randrange(4)) for at in moved]


ROWS = FEW | many()


def columns(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    return [np.array([row[part] for row in rows], np.int64) for part in range(3)]


@given(ROWS)
def test_group_and_sort(rows: list[tuple[int, int, int]]) -> None:
    """Grouped and sorted rows are those of a stable sort by (group, major, minor)."""
    ids, major, minor = columns(rows)
    order, start = group_by_id(ids, 5)
    sort_groups(order, start, major, minor)
    assert order.tolist() == sorted(range(len(rows)), key=lambda row: (*rows[row], row))
    assert start.tolist() == [sum(row[0] < id_ for row in rows) for id_ in range(6)]


@pytest.mark.parametrize("disorder", [0, 3, 30, 500])
@pytest.mark.parametrize("size", [24, 25, 48, 49, 97, 400])
def test_blocks_are_merged(size: int, disorder: int) -> None:
    """Rows of one group are sorted whether they fill one block or many, and whether the blocks overlap or not."""
    rows = spread(Random(size), size, 1, disorder)
    ids, major, minor = columns(rows)
    order, start = group_by_id(ids, 1)
    sort_groups(order, start, major, minor)
    assert order.tolist() == sorted(range(size), key=lambda row: (*rows[row], row))


@given(ROWS)
def test_equal_rows_are_listed(rows: list[tuple[int, int, int]]) -> None:
    """Sorted rows that are equal to a neighbour of their group are listed."""
    ids, major, minor = columns(rows)
    order, start = group_by_id(ids, 5)
    sort_groups(order, start, major, minor)
    several = [at for at, row in enumerate(order) if rows.count(rows[row]) > 1]
    assert list_tied_slots(order, start, major, minor).tolist() == several


RANKS = range(60)
LYING = {
    "in order": [*RANKS],
    "reversed": [*RANKS[::-1]],
    "the last first": [RANKS[-1], *RANKS[:-1]],
    "mixed": Random(1).sample(RANKS, len(RANKS)),
}


@pytest.mark.parametrize("lying", LYING.values(), ids=LYING)
def test_one_pair_of_equal_rows_is_listed(lying: list[int]) -> None:
    """Two equal rows among many are listed, whatever their places and the order of the rest; otherwise none are."""
    for twin in RANKS:  # is equal to the one before it; the first has none
        major, minor = np.array([divmod(rank - (rank == twin), 5) for rank in lying], np.int64).T.copy()
        rows, start = group_by_id(np.zeros_like(major), 1)
        sort_groups(rows, start, major, minor)
        slots = list_tied_slots(rows, start, major, minor)
        assert slots.dtype == np.int32
        assert slots.tolist() == ([twin - 1, twin] if twin > 0 else [])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=60), st.sampled_from([5, 50, 10**6]))
def test_pairs(number_pairs: list[tuple[int, int]], seconds: int) -> None:
    """Distinct pairs are numbered in the order of appearance, whether few or many pairs are possible."""
    first, second = np.array(number_pairs, np.int32).reshape(-1, 2).T.copy()
    distinct = list(dict.fromkeys(number_pairs))
    for firsts in (21, 10**6):
        numbers, count = pairs(first, second, firsts, seconds)
        assert numbers.tolist() == [distinct.index(pair) for pair in number_pairs]
        assert numbers.dtype == np.int32
        assert count == len(distinct)


def test_pairs_in_little_memory() -> None:
    """Pairs of large numbers are told apart without a table of all possible pairs."""
    bound = 2**31 - 1
    first, second = np.array([bound - 1] * 3, np.int32), np.array([7, 8, 7], np.int32)
    numbers, count = pairs(first, second, bound, bound)
    assert (numbers.tolist(), count) == ([0, 1, 0], 2)


@given(st.lists(st.integers(-9, 9)), st.lists(st.integers(-5, 5) | st.integers(2**62, 2**62 + 9), min_size=1))
def test_among(values: list[int], some: list[int]) -> None:
    """The positions of the values that are in a set are found, however far apart its numbers are."""
    positions = positions_in(np.array(values, np.int64), np.array(some, np.int64))
    assert positions.tolist() == [row for row, value in enumerate(values) if value in some]


@given(ROWS)
def test_ties(rows: list[tuple[int, int, int]]) -> None:
    """Sorted rows are numbered by runs of equal ones, and the slots of runs of two or more are listed."""
    ids, major, _ = columns(rows)
    ordered = np.lexsort((major, ids))
    run, slots = number_ties(ordered, (ids, major))
    values = [(ids[row], major[row]) for row in ordered]
    distinct = sorted(set(values))
    assert [distinct[number] for number in run] == values
    assert slots.tolist() == [slot for slot, value in enumerate(values) if values.count(value) > 1]

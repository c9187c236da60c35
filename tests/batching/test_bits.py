import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from windrow.batching.bits import LEVELS, add, contains, insert, predecessor, range_sum, remove, successor

SIZES = st.sampled_from([1, 63, 64, 65, 4_095, 4_096, 4_097, 300_000])
INSERT, REMOVE = 0, 1


def begins(size: int, shift: int) -> np.ndarray:
    lengths = [(size >> (6 * level + shift)) + 1 for level in range(LEVELS)]
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@njit
def follow(words, begin, kinds, positions, size, held, before, after):  # type: ignore[no-untyped-def]
    """Apply operations and note what the set says about each position before and after."""
    for index in range(kinds.size):
        position = positions[index]
        if kinds[index] == INSERT:
            insert(words, begin, position)
        else:
            remove(words, begin, position)
        held[index] = contains(words, begin, position)
        before[index] = predecessor(words, begin, position)
        after[index] = successor(words, begin, position, size)


@njit
def sum_up(sums, begin, positions, amounts, first, last):  # type: ignore[no-untyped-def]
    for index in range(positions.size):
        add(sums, begin, positions[index], amounts[index])
    return range_sum(sums, begin, first, last)


@given(st.data())
def test_set_agrees_with_a_sorted_list(data: st.DataObject) -> None:
    """
    After any insertions and removals, membership, predecessor and successor are those of a plain set.
    """
    size = data.draw(SIZES)
    steps = data.draw(st.lists(st.tuples(st.sampled_from([INSERT, REMOVE]), st.integers(0, size - 1)), max_size=60))
    begin = begins(size, 6)
    kinds, positions = (np.array([step[part] for step in steps], np.int64) for part in (0, 1))
    held, before, after = np.zeros((3, len(steps)), np.int64)
    follow(np.zeros(begin[-1], np.uint64), begin, kinds, positions, size, held, before, after)
    plain: set[int] = set()
    for index, (kind, position) in enumerate(steps):
        (plain.add if kind == INSERT else plain.discard)(position)
        assert bool(held[index]) == (position in plain)
        assert before[index] == max((member for member in plain if member <= position), default=-1)
        assert after[index] == min((member for member in plain if member >= position), default=-1)


@given(st.data())
def test_range_sum_agrees_with_a_plain_sum(data: st.DataObject) -> None:
    """
    The tree of sums gives the sum of any range.
    """
    size = data.draw(SIZES)
    inside = st.integers(0, size - 1)
    weights = data.draw(st.dictionaries(inside, st.integers(0, 10**9), max_size=40))
    first, last = sorted((data.draw(inside), data.draw(inside)))
    begin = begins(size, 0)
    positions, amounts = np.array(list(weights), np.int64), np.array(list(weights.values()), np.int64)
    total = sum_up(np.zeros(begin[-1], np.int64), begin, positions, amounts, first, last)
    assert total == sum(amount for position, amount in weights.items() if first <= position <= last)

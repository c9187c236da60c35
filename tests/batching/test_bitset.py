import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from windrow.batching.bitset import contains, insert, levels_of, predecessor, remove, successor

SIZES = st.sampled_from([1, 63, 64, 65, 4_095, 4_096, 4_097, 300_000])
EDGES = [edge + beside for edge in (0, 64, 128, 64 * 63, 64 * 64, 64 * 65, 64**3) for beside in (-2, -1, 0, 1)]
INSERT, REMOVE = 0, 1


def inside(size: int) -> st.SearchStrategy[int]:
    """Positions, most of them beside the edges of words."""
    near = st.sampled_from([edge for edge in EDGES if 0 <= edge < size])
    return near | near | st.integers(0, size - 1)


@njit
def follow(words, start, steps, size, is_member, before, after):  # type: ignore[no-untyped-def]
    """Apply operations and note after each what the set says about a position."""
    for index in range(steps.shape[0]):
        kind, changed, position = steps[index]
        if kind == INSERT:
            insert(words, start, changed)
        else:
            remove(words, start, changed)
        is_member[index] = contains(words, start, position)
        before[index] = predecessor(words, start, position)
        after[index] = successor(words, start, position, size)


@given(st.data())
def test_set_agrees_with_a_sorted_list(data: st.DataObject) -> None:
    """After any insertions and removals, membership, predecessor and successor are those of a plain set."""
    size = data.draw(SIZES)
    kinds = st.sampled_from([INSERT, INSERT, REMOVE])
    steps = data.draw(st.lists(st.tuples(kinds, inside(size), inside(size)), min_size=30, max_size=60))
    start = levels_of(size)
    is_member, before, after = np.zeros((3, len(steps)), np.int64)
    follow(np.zeros(start[-1], np.uint64), start, np.array(steps, np.int64), size, is_member, before, after)
    plain: set[int] = set()
    for index, (kind, changed, position) in enumerate(steps):
        (plain.add if kind == INSERT else plain.discard)(changed)
        assert bool(is_member[index]) == (position in plain)
        assert before[index] == max((member for member in plain if member <= position), default=-1)
        assert after[index] == min((member for member in plain if member >= position), default=-1)

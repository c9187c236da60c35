from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.model import clock

TIMES = st.integers(2**60, 2**60 + 9)  # which a float would take for one time


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(TIMES, st.integers(0, 2**60), TIMES)
def test_idle_clock(reached: int, waited: int, seen_at: int) -> None:
    """An idle clock moves on by the wall time since its source's data was committed, and never goes back."""
    clocks = clock.idle_clocks(ints([reached, reached]), ints([seen_at, seen_at + 1]), seen_at + waited)
    assert clocks.tolist() == [reached + waited, reached + max(waited - 1, 0)]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), TIMES | st.just(clock.UNKNOWN)), max_size=20), TIMES)
def test_rise(rows: list[tuple[int, bool, int]], start: int) -> None:
    """The floor of a row is the greatest stamp of its source in earlier versions, or what it was before; rows of one
    version do not see each other, stamps that are not known count for nothing, and every microsecond counts.
    """
    versions = np.cumsum([new for _, new, _ in rows]).tolist()
    floor = ints([start, clock.UNKNOWN, start - 5])
    before = floor.tolist()
    seen = clock.raise_floors(ints([row[0] for row in rows]), ints(versions), ints([row[2] for row in rows]), floor)
    known = list(zip(rows, versions, strict=True))

    def reached(source: int, until: int) -> int:
        return max([before[source], *(row[2] for row, version in known if row[0] == source and version < until)])

    assert seen.tolist() == [reached(row[0], version) for row, version in known]
    assert floor.tolist() == [reached(source, len(rows) + 1) for source in range(3)]

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.clock import UNKNOWN
from windrow.floors import Floors

LATE = 2**60 + 1  # a float does not hold it


def floors(**floor: int) -> Floors:
    """Return the floors of sources."""
    return Floors(pa.array(floor, pa.string()), np.array(list(floor.values()), np.int64))


def as_dictionary(given: Floors) -> dict[str, int]:
    """Return floors by source."""
    return dict(zip(given.source.to_pylist(), given.floor.tolist(), strict=True))


def test_of() -> None:
    """
    Each source has its own floor, to the microsecond, and one that was never seen has none.
    """
    asked = pa.array(["b", "c", "a", "b"])
    assert floors(a=5, b=LATE).of(asked).tolist() == [LATE, UNKNOWN, 5, LATE]
    assert Floors.empty().of(asked).tolist() == [UNKNOWN] * 4
    assert Floors.empty().of(asked).dtype == np.int64


def test_at_least() -> None:
    """
    A tick raises the floors that lie below it, of known sources alone.
    """
    assert as_dictionary(floors(a=5, b=LATE).at_least(7)) == {"a": 7, "b": LATE}
    assert as_dictionary(Floors.empty().at_least(7)) == {}


def test_raised() -> None:
    """
    No floor is ever lowered, the greatest counts, and sources that were unknown are added.
    """
    again = pa.array(["b", "c", "b", "a"])
    raised = floors(a=5, b=7).raised(again, np.array([6, LATE, 9, -1], np.int64))
    assert as_dictionary(raised) == {"a": 5, "b": 9, "c": LATE}
    assert as_dictionary(Floors.empty().raised(raised.source, raised.floor)) == as_dictionary(raised)

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.formats.format import format_of
from windrow.formats.part import FormatPart
from windrow.formats.raw.source import located

FORMAT = format_of(FormatPart(type="csv", fields={"a": "string"}, header=False))


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(-2, 60)))
def test_located(sizes, positions):
    """
    A position is in the last piece that begins at or before it, in whatever order they are asked for.
    """
    begins = np.cumsum([0, *sizes])
    found = located(begins, np.array(positions, np.int64))
    assert found.tolist() == (np.searchsorted(begins, positions, side="right") - 1).tolist()

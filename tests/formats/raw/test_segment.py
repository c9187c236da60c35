import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.formats.raw.source import locate_spans


@given(st.lists(st.integers(1, 9), min_size=1), st.data())
def test_placed(sizes, data):
    """A span begins in the last piece that begins at or before it, and came with the piece of its last byte, in
    whatever order spans are asked for.
    """
    begins = np.cumsum([0, *sizes])
    pieces = np.array([begins[:-1], range(1, len(begins)), 7 * begins[:-1], begins[:-1], begins[:-1]], np.int64)
    ends = data.draw(st.lists(st.tuples(*2 * [st.integers(0, int(begins[-1]) - 1)]), min_size=1))
    start, end = (np.array(side, np.int64) for side in zip(*(sorted(pair) for pair in ends), strict=True))
    chunk, offset, received = locate_spans(pieces, start, end + 1, np.arange(len(start)))
    first, last = (np.searchsorted(begins, side, side="right") - 1 for side in (start, end))
    assert chunk.tolist() == (first + 1).tolist()
    assert offset.tolist() == (7 * begins[first] + start - begins[first]).tolist()
    assert received.tolist() == begins[last].tolist()

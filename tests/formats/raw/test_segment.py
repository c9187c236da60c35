from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.formats.part import FormatPart
from windrow.formats.raw.queue import Chunk, Taken
from windrow.formats.raw.segment import segments
from windrow.formats.raw.source import Source, located
from windrow.formats.settings import format_of

FORMAT = format_of(FormatPart(type="csv", fields={"a": "string"}, header=False))


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(-2, 60)))
def test_located(sizes, positions):
    """
    A position is in the last piece that begins at or before it, in whatever order they are asked for.
    """
    begins = np.cumsum([0, *sizes])
    found = located(begins, np.array(positions, np.int64))
    assert found.tolist() == (np.searchsorted(begins, positions, side="right") - 1).tolist()


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)), st.sampled_from(["one", "own", "apart", "backwards"]))
def test_contents(data, cuts, where):
    """
    The bytes of a segment are those of its chunks, wherever these lie in memory.
    """
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pairs = list(pairwise(bounds))
    held = memoryview(data + b"|" + data)
    parts = {
        "one": [held[begin:end] for begin, end in pairs],
        "own": [memoryview(data[begin:end]) for begin, end in pairs],
        "apart": [held[begin + (n % 2) * (len(data) + 1) :][: end - begin] for n, (begin, end) in enumerate(pairs)],
        "backwards": [
            held[begin + (n % 2 == 0) * (len(data) + 1) :][: end - begin] for n, (begin, end) in enumerate(pairs)
        ],
    }[where]
    taken = [Taken(Chunk.of(n, part, False, 0, 1), 1) for n, part in enumerate(parts, 1)]
    source = Source("s")
    found = [segment.buffer.tobytes() for segment in segments(source, taken, FORMAT)]
    mark = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    assert b"".join(found) + (b"" if source.begun else source.rest) in {data[mark:], data}

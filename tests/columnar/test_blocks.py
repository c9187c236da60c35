import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import BLOCK, below, lowest, same
from windrow.columnar.compiled import compiled


@compiled
def looked(buffer, at, byte, found):
    found[0] = same(buffer, np.uint64(at), np.uint8(byte))
    found[1] = below(buffer, np.uint64(at), np.uint8(byte))
    found[2] = lowest(found[0])


@given(st.binary(min_size=BLOCK, max_size=2 * BLOCK), st.data())
def test_meaning(data, draw):
    """
    The instructions say of a block, wherever it begins, what the functions say that stand for them.
    """
    buffer = read_only(np.frombuffer(data, np.uint8))
    at = draw.draw(st.integers(0, len(data) - BLOCK))
    byte = draw.draw(st.sampled_from(sorted({0, 255, *data})))
    found = np.empty(3, np.uint64)
    looked(buffer, at, byte, found)
    told = same(buffer, np.uint64(at), np.uint8(byte))
    assert found.tolist() == [told, below(buffer, np.uint64(at), np.uint8(byte)), lowest(told)]


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 63, 64])
def test_lowest(bit):
    """
    The lowest bit is the first byte, and where none is set there are as many before it as a block has.
    """
    data = np.full(BLOCK, ord("b"), np.uint8)
    data[bit:] = ord("a")
    found = np.empty(3, np.uint64)
    looked(read_only(data), 0, ord("a"), found)
    assert found.tolist() == [2**64 - 2**bit, 0, bit]

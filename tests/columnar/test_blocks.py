import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import BLOCK, below, lowest, same
from windrow.columnar.compiled import compiled


@compiled
def looked(octets, at, octet, found):
    found[0] = same(octets, np.uint64(at), np.uint8(octet))
    found[1] = below(octets, np.uint64(at), np.uint8(octet))
    found[2] = lowest(found[0])


@given(st.binary(min_size=BLOCK, max_size=2 * BLOCK), st.data())
def test_meaning(data, draw):
    """
    The instructions say of a block, wherever it begins, what the functions say that stand for them.
    """
    octets = read_only(np.frombuffer(data, np.uint8))
    at = draw.draw(st.integers(0, len(data) - BLOCK))
    octet = draw.draw(st.sampled_from(sorted({0, 255, *data})))
    found = np.empty(3, np.uint64)
    looked(octets, at, octet, found)
    told = same(octets, np.uint64(at), np.uint8(octet))
    assert found.tolist() == [told, below(octets, np.uint64(at), np.uint8(octet)), lowest(told)]


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 63, 64])
def test_lowest(bit):
    """
    The lowest bit is the first octet, and where none is set there are as many before it as a block has.
    """
    data = np.full(BLOCK, ord("b"), np.uint8)
    data[bit:] = ord("a")
    found = np.empty(3, np.uint64)
    looked(read_only(data), 0, ord("a"), found)
    assert found.tolist() == [2**64 - 2**bit, 0, bit]

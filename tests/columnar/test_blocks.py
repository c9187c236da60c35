import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import count_before_mark, load_u64, lowest_set_bit, mark_equal, mark_less_than
from windrow.columnar.compiled import compile_lazily


@compile_lazily
def looked(buffer, at, byte, results):
    word = load_u64(buffer, np.uint64(at))
    results[0] = word
    for number, marks in enumerate((mark_equal(word, np.uint8(byte)), mark_less_than(word, np.uint8(byte)))):
        results[1 + number] = count_before_mark(marks) if marks else np.uint64(8)


@given(st.binary(min_size=8, max_size=16), st.data())
def test_meaning(data, draw):
    """Eight bytes anywhere are read as a number, in which the first byte that equals, or is less than, a given one is
    found.
    """
    at = draw.draw(st.integers(0, len(data) - 8))
    byte = draw.draw(st.sampled_from(sorted({0, 1, 127, 128, *(value for value in data if value <= 128)})))
    results = np.empty(3, np.uint64)
    looked(read_only(np.frombuffer(data, np.uint8)), at, byte, results)
    those = data[at : at + 8]
    same = next((number for number, value in enumerate(those) if value == byte), 8)
    less = next((number for number, value in enumerate(those) if value < byte), 8)
    assert results.tolist() == [int.from_bytes(those, "little"), same, less]


@given(st.binary(min_size=8, max_size=8), st.integers(0, 255))
def test_equal_to_any(data, byte):
    """Any byte can be looked for, also one above 128."""
    results = np.empty(3, np.uint64)
    looked(read_only(np.frombuffer(data, np.uint8)), 0, byte, results)
    assert results[1] == (data.index(byte) if byte in data else 8)


@compile_lazily
def lowest_of(words, positions):
    for number in range(len(words)):
        positions[number] = lowest_set_bit(words[number])


@given(st.lists(st.integers(1, 2**64 - 1)))
def test_lowest(words):
    """The lowest bit is found, whatever stands above it."""
    words += [1 << bit for bit in range(64)]
    positions = np.empty(len(words), np.uint64)
    lowest_of(np.array(words, np.uint64), positions)
    assert positions.tolist() == [(word & -word).bit_length() - 1 for word in words]

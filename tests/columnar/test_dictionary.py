from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.dictionary import dictionary_encode

# Of few letters and every length that two words of eight bytes treat differently, so that they are alike in parts.
ALIKE = st.builds(
    lambda letters, at, other: letters[:at] + other + letters[at + 1 :],
    st.sampled_from([letter * size for letter in "a\0" for size in (0, 1, 7, 8, 9, 15, 16, 17, 24, 25, 40)]),
    st.integers(0, 40),
    st.sampled_from(["", "b", "ß"]),
)
TEXTS = st.lists(ALIKE | st.text(max_size=20), max_size=40)


def same(texts: pa.Array) -> None:
    """Compare with Arrow's dictionary, entry by entry and number by number."""
    made, arrows = dictionary_encode(texts), texts.dictionary_encode()
    made.validate(full=True)
    assert made.equals(arrows)


@given(TEXTS, st.integers(0, 5), st.integers(0, 5))
def test_as_arrow(texts: list[str], skipped: int, left: int) -> None:
    """
    Texts get the numbers and the dictionary that Arrow gives them, also those of a slice of an array.
    """
    whole = pa.array(texts, pa.string())
    same(whole)
    same(whole.slice(skipped, max(len(texts) - skipped - left, 0)))


@given(st.lists(st.binary(max_size=20)))
def test_bytes(values: list[bytes]) -> None:
    """
    Bytes that are not text are told apart too.
    """
    same(pa.array(values, pa.binary()))


@pytest.mark.parametrize("values", [["a", None, "a"], [None], []])
def test_null(values: list[str | None]) -> None:
    """
    NULL has no number, and an empty array has an empty dictionary.
    """
    same(pa.array(values, pa.string()))


@pytest.mark.parametrize("size", [1, 2, 60, 50_000])
@pytest.mark.parametrize("shuffled", [False, True])
def test_many(size: int, shuffled: bool) -> None:
    """
    The result does not depend on the number of texts, nor on whether they come in turns or at random.
    """
    number = np.arange(100_000) % size
    if shuffled:
        np.random.default_rng(1).shuffle(number)
    same(pa.array([f"device {one}" for one in number.tolist()]))


def test_end_of_memory() -> None:
    """
    Nothing is read after the last byte, where other memory may begin.
    """
    buffer = b"aab" + b"c" * 8 + b"a"
    bounds = np.array([0, 1, 2, 3, 11, 12], np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(buffer)]
    same(pa.Array.from_buffers(pa.string(), 5, buffers))

"""Look at eight bytes at once as one number, and at the bits of a number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windrow.columnar.compiled import inline

ONE, EIGHT = np.uint64(1), np.uint64(8)
ONES, HIGH = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
PAIRS, FOURS, EIGHTS = (np.uint64(bits) for bits in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F))


@inline
def load_u64(buffer: npt.NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Return eight bytes as a little-endian number; the compiler turns this into one instruction."""
    word = np.uint64(0)
    for place in range(8):
        word |= np.uint64(buffer[at + np.uint64(place)]) << np.uint64(8 * place)
    return word


@inline
def mark_equal(word: np.uint64, byte: np.uint8) -> np.uint64:
    """Mark the first of the eight bytes that equals `byte`; marks after it mean nothing."""
    return mark_less_than(word ^ (ONES * np.uint64(byte)), np.uint8(1))


@inline
def mark_less_than(word: np.uint64, byte: np.uint8) -> np.uint64:
    """Mark the first of the eight bytes that is less than `byte` (at most 128); marks after it mean nothing."""
    return (word - ONES * np.uint64(byte)) & ~word & HIGH


@inline
def count_before_mark(marks: np.uint64) -> np.uint64:
    """Return how many of the eight bytes come before the first marked one."""
    return lowest_set_bit(marks) >> np.uint64(3)


@inline
def lowest_set_bit(bits: np.uint64) -> np.uint64:
    """Return the number of the lowest set bit. The compiler turns this count of bits into one instruction."""
    below_it = (bits - ONE) & ~bits
    pairs = below_it - (below_it >> ONE & PAIRS)
    fours = (pairs & FOURS) + (pairs >> np.uint64(2) & FOURS)
    return (fours + (fours >> np.uint64(4)) & EIGHTS) * ONES >> np.uint64(56)

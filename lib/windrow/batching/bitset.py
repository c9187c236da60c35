"""An ordered set of small integers: 64-bit words, with levels of bits above that mark the non-empty words.

Insert, remove, predecessor and successor touch at most one word per level, so a set over n positions costs
log64(n) steps. A set is a contiguous range of a uint64 array; `begins[k]` is where its level k starts. The functions
are inlined into the kernel, because passing arrays to a compiled function costs more than the functions themselves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit
from numpy import uint64

LEVELS = 5  # 64^5 positions: more than any table has rows

_ONE = uint64(1)
_LOW = uint64(63)
_ALL = uint64(0xFFFFFFFFFFFFFFFF)
# Every second bit, the lower two of every four, and the lower half of each byte.
_TWOS, _FOURS, _BYTES = uint64(0x5555555555555555), uint64(0x3333333333333333), uint64(0x0F0F0F0F0F0F0F0F)


def levels_of(positions: int) -> npt.NDArray[np.int64]:
    """Return where the levels of a set begin in an array, and where the last level ends."""
    lengths = [(positions >> (6 * level + 6)) + 1 for level in range(LEVELS)]
    return np.cumsum([0, *lengths])


@njit(inline="always")
def _count(word):  # type: ignore[no-untyped-def]
    """Return how many bits are set: count them in pairs of bits, then fours, then bytes, and add up the bytes."""
    word -= (word >> uint64(1)) & _TWOS
    word = (word & _FOURS) + ((word >> uint64(2)) & _FOURS)
    word = (word + (word >> uint64(4))) & _BYTES
    for shift in (8, 16, 32):
        word += word >> uint64(shift)
    return int(word & uint64(0x7F))


@njit(inline="always")
def _lowest(word):  # type: ignore[no-untyped-def]
    """Return the number of the lowest set bit, which is how many bits are below it."""
    return _count(~word & (word - _ONE))


@njit(inline="always")
def _highest(word):  # type: ignore[no-untyped-def]
    """Return the number of the highest set bit: set all bits below it, and count."""
    for shift in (1, 2, 4, 8, 16, 32):
        word |= word >> uint64(shift)
    return _count(word) - 1


@njit(inline="always")
def contains(words, begins, position):  # type: ignore[no-untyped-def]
    """Tell whether `position` is in the set."""
    return (words[begins[0] + (position >> 6)] >> (uint64(position) & _LOW)) & _ONE != 0


@njit(inline="always")
def insert(words, begins, position):  # type: ignore[no-untyped-def]
    """Add `position`; a level above changes only if the word was empty."""
    rest = position
    for level in range(LEVELS):
        at = uint64(begins[level] + (rest >> 6))
        before = words[at]
        words[at] = before | (_ONE << (uint64(rest) & _LOW))
        if before != 0:
            break
        rest >>= 6


@njit(inline="always")
def remove(words, begins, position):  # type: ignore[no-untyped-def]
    """Remove `position`; a level above changes only if the word became empty."""
    rest = position
    for level in range(LEVELS):
        at = uint64(begins[level] + (rest >> 6))
        words[at] &= ~(_ONE << (uint64(rest) & _LOW))
        if words[at] != 0:
            break
        rest >>= 6


@njit(inline="always")
def predecessor(words, begins, position):  # type: ignore[no-untyped-def]
    """Return the greatest member that is at most `position`, or -1."""
    slot = -1
    rest = position
    level = 0
    while level < LEVELS and rest >= 0:
        word = words[begins[level] + (rest >> 6)] & (_ALL >> (_LOW - (uint64(rest) & _LOW)))
        if word != 0:
            slot = ((rest >> 6) << 6) + _highest(word)
            break
        rest = (rest >> 6) - 1
        level += 1
    while slot >= 0 and level > 0:
        level -= 1
        slot = (slot << 6) + _highest(words[begins[level] + slot])
    return slot


@njit(inline="always")
def successor(words, begins, position, size):  # type: ignore[no-untyped-def]
    """Return the least member that is at least `position`, or -1; `size` is the number of positions."""
    slot = -1
    rest = position
    length = size
    level = 0
    while level < LEVELS and rest < length:
        word = words[begins[level] + (rest >> 6)] & (_ALL << (uint64(rest) & _LOW))
        if word != 0:
            slot = ((rest >> 6) << 6) + _lowest(word)
            break
        rest = (rest >> 6) + 1
        length = (length + 63) >> 6
        level += 1
    while slot >= 0 and level > 0:
        level -= 1
        slot = (slot << 6) + _lowest(words[begins[level] + slot])
    return slot

"""Encode texts with a dictionary, numbered in the order of first appearance, faster than Arrow.

Arrow hashes every text. Devices send in the same order again and again: one device's sensors, then the next device's.
So a text is first compared with the one that followed the same text last time, and looked up by its hash only if it
differs. The first and last eight bytes are compared first, which covers most keys completely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.columnar.blocks import eight
from windrow.columnar.compiled import Ints, Numbers, Words, always_inlined, compiled_in_place

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 by the golden ratio
HALF, ONE, ZERO = np.uint64(32), np.uint64(1), np.uint64(0)
WORD = 8  # bytes


class Known(NamedTuple):
    """The distinct texts so far, numbered from 1: position, size, ends, and which text followed last time (0: none)."""

    begin: Ints
    size: Ints
    head: Words  # the first eight bytes at most
    tail: Words  # the last eight bytes; 0 for a text of at most eight bytes
    following: Numbers

    @classmethod
    def room(cls, texts: int) -> Known:
        """Return room for this many texts."""
        begin, size = np.empty((2, texts + 1), np.int64)
        head, tail = np.empty((2, texts + 1), np.uint64)
        return cls(begin, size, head, tail, np.empty(texts + 1, np.int32))


def dictionary_encode(texts: pa.Array) -> pa.DictionaryArray:
    """Return texts (`string` or `binary`) with a dictionary, as Arrow's function of this name does."""
    if texts.null_count or not len(texts):
        return texts.dictionary_encode()
    _, bounds, data = texts.buffers()
    bound = np.frombuffer(bounds, np.int32, len(texts) + 1, 4 * texts.offset)
    buffer = np.frombuffer(data or b"", np.uint8)
    number, first = np.empty((2, len(texts)), np.int32)
    places = np.zeros(1 << (2 * len(texts)).bit_length(), np.int32)
    count = _number(bound, buffer, Known.room(len(texts)), places, number, first)
    return pa.DictionaryArray.from_arrays(pa.array(number), texts.take(pa.array(first[:count])), safe=False)


@compiled_in_place
def _number(bounds, buffer, known, places, number, first):  # type: ignore[no-untyped-def]
    """Number the texts, and return how many distinct ones there are; `first` gets the row where each first appears.

    `places` is a hash table of the numbers of known texts; 0 means free.
    """
    count, before = ZERO, ZERO
    known.following[0] = 0
    at = np.int64(bounds[0])
    for row in range(number.size):
        size = bounds[row + 1] - at
        head, tail = _ends(buffer, at, size)
        one = np.uint64(known.following[before])
        if one == 0 or not _is(known, one, buffer, at, size, head, tail):
            place = _hash(buffer, at, size, head, tail)
            while True:
                place &= np.uint64(places.size - 1)
                one = np.uint64(places[place])
                if one == 0 or _is(known, one, buffer, at, size, head, tail):
                    break
                place += ONE
            if one == 0:
                first[count] = row
                count += ONE
                one = count
                known.begin[one], known.size[one], known.following[one] = at, size, 0
                known.head[one], known.tail[one] = head, tail
                places[place] = one
            known.following[before] = one
        number[row] = one - ONE
        before = one
        at += size
    return count


@always_inlined
def _ends(buffer, at, size):  # type: ignore[no-untyped-def]
    """Return the first eight bytes of a text at most, and the last eight of a longer text (else 0)."""
    head, tail = ZERO, ZERO
    if size > WORD:
        head, tail = eight(buffer, np.uint64(at)), eight(buffer, np.uint64(at + size - WORD))
    elif at + WORD <= buffer.size:
        head = eight(buffer, np.uint64(at))
        if size < WORD:
            head &= (ONE << np.uint64(8 * size)) - ONE
    else:
        for place in range(size):
            head |= np.uint64(buffer[at + place]) << np.uint64(8 * place)
    return head, tail


@always_inlined
def _is(known, one, buffer, at, size, head, tail):  # type: ignore[no-untyped-def]
    """Tell whether the known text number `one` equals this text."""
    equal = known.head[one] == head and known.tail[one] == tail and known.size[one] == size
    begin = known.begin[one]
    for middle in range(WORD, size - WORD, WORD):
        equal = equal and eight(buffer, np.uint64(begin + middle)) == eight(buffer, np.uint64(at + middle))
    return equal


@always_inlined
def _hash(buffer, at, size, head, tail):  # type: ignore[no-untyped-def]
    """Return a hash of a text; its low bits depend on every byte."""
    mixed = _mixed(_mixed(np.uint64(size), head), tail)
    for middle in range(WORD, size - WORD, WORD):
        mixed = _mixed(mixed, eight(buffer, np.uint64(at + middle)))
    return mixed


@always_inlined
def _mixed(one, other):  # type: ignore[no-untyped-def]
    mixed = (one ^ other) * MULTIPLIER
    return mixed ^ (mixed >> HALF)

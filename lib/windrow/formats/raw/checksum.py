"""The checksum of a chunk: XXH64 (Yann Collet), which is faster than reading the chunk again.

It detects accidental differences, not deliberate collisions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import load_u64
from windrow.columnar.compiled import ByteArray, Ints, compile_lazily, inline

PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
)  # fmt: skip
ONE, FOUR, EIGHT, STRIPE, WORD = (np.uint64(number) for number in (1, 4, 8, 32, 64))


def checksum(content: bytes | memoryview) -> int:
    """Return the XXH64 of bytes, with seed 0."""
    return int(checksums(np.frombuffer(content, np.uint8), np.array([0]), np.array([len(content)]))[0])


def checksums(buffer: ByteArray, start: Ints, end: Ints) -> npt.NDArray[np.uint64]:
    """Return the XXH64 of each run of bytes from `start` to `end`."""
    sums = np.empty(start.size, np.uint64)
    _fill(read_only(buffer), read_only(start), read_only(end), sums)
    return sums


@compile_lazily
def _fill(buffer: ByteArray, start: Ints, end: Ints, sums: npt.NDArray[np.uint64]) -> None:
    for number in range(len(start)):
        sums[number] = _xxh64(buffer, np.uint64(start[number]), np.uint64(end[number]))


@inline
def _xxh64(buffer: ByteArray, at: np.uint64, stop: np.uint64) -> np.uint64:
    length = stop - at
    if length >= STRIPE:
        lane_1, lane_2, lane_3, lane_4 = PRIME_1 + PRIME_2, PRIME_2, np.uint64(0), np.uint64(0) - PRIME_1
        while at + STRIPE <= stop:
            lane_1 += load_u64(buffer, at) * PRIME_2
            lane_2 += load_u64(buffer, at + EIGHT) * PRIME_2
            lane_3 += load_u64(buffer, at + EIGHT + EIGHT) * PRIME_2
            lane_4 += load_u64(buffer, at + EIGHT + EIGHT + EIGHT) * PRIME_2
            lane_1 = (lane_1 << np.uint64(31) | lane_1 >> np.uint64(33)) * PRIME_1
            lane_2 = (lane_2 << np.uint64(31) | lane_2 >> np.uint64(33)) * PRIME_1
            lane_3 = (lane_3 << np.uint64(31) | lane_3 >> np.uint64(33)) * PRIME_1
            lane_4 = (lane_4 << np.uint64(31) | lane_4 >> np.uint64(33)) * PRIME_1
            at += STRIPE
        total = lane_1 << np.uint64(1) | lane_1 >> np.uint64(63)
        total += lane_2 << np.uint64(7) | lane_2 >> np.uint64(57)
        total += lane_3 << np.uint64(12) | lane_3 >> np.uint64(52)
        total += lane_4 << np.uint64(18) | lane_4 >> np.uint64(46)
        for lane in (lane_1, lane_2, lane_3, lane_4):
            mixed = lane * PRIME_2
            total ^= (mixed << np.uint64(31) | mixed >> np.uint64(33)) * PRIME_1
            total = total * PRIME_1 + PRIME_4
    else:
        total = PRIME_5
    total += length
    while at + EIGHT <= stop:
        mixed = load_u64(buffer, at) * PRIME_2
        total ^= (mixed << np.uint64(31) | mixed >> np.uint64(33)) * PRIME_1
        total = (total << np.uint64(27) | total >> np.uint64(37)) * PRIME_1 + PRIME_4
        at += EIGHT
    if at + FOUR <= stop:
        mixed = np.uint64(0)
        for place in range(4):
            mixed |= np.uint64(buffer[at + np.uint64(place)]) << np.uint64(8 * place)
        total ^= mixed * PRIME_1
        total = (total << np.uint64(23) | total >> np.uint64(41)) * PRIME_2 + PRIME_3
        at += FOUR
    while at < stop:
        total ^= np.uint64(buffer[at]) * PRIME_5
        total = (total << np.uint64(11) | total >> np.uint64(53)) * PRIME_1
        at += ONE
    total = (total ^ total >> np.uint64(33)) * PRIME_2
    total = (total ^ total >> np.uint64(29)) * PRIME_3
    return total ^ total >> np.uint64(32)

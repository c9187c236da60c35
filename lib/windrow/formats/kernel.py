"""The compiled loops over bytes that framing uses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windrow.columnar.compiled import compiled, inlined

ByteArray = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
REGROUPED_EVERY = 4096
BLOCK = 64  # bytes, one for each bit of a word
ROW = np.uint32(10)  # bits of an index into the steps of one state
MOST_MARKS = 8
RETURN = ord("\r")


@compiled
def follow(
    steps: npt.NDArray[np.uint32],
    marks: ByteArray,
    buffer: ByteArray,
    at: int,
    state: int,
    begin: int,
    limit: int,
    room: Positions,
) -> tuple[int, int, int, int]:
    """Write where records end, until there is little room, a record is too long (`limit`), or no bytes are left.

    A step is the index in `steps` at which the next state begins; its lowest bit says whether a record ended. Only the
    bytes in `marks` are looked at (or all bytes, if there are too many marks). A gap is a run of other bytes, which
    does the same as one of them. Each state has steps for a byte, for a byte after a gap, and for a gap.
    """
    count, most, length = 0, limit - begin, np.uint64(len(buffer))
    row, ended, gap_before, gap = np.uint32(state) << ROW, np.uint32(1), np.uint32(256), np.uint32(512)
    here, one, none, width = np.uint64(at), np.uint64(1), np.uint64(0), np.uint64(BLOCK)
    stop = min(length, np.uint64(limit))
    while here < stop and count + BLOCK <= len(room):
        if here + width <= length and len(marks) <= MOST_MARKS:
            size, bits = width, none
            for mark in marks:
                bits |= _same(buffer, here, mark)
        else:
            size = min(width, length - here)
            bits = ~none >> (width - size)
        passed = none
        while bits != none:
            place = _lowest(bits)
            bits &= bits - one
            if here + place >= stop:
                break
            before = gap_before if place > passed else np.uint32(0)
            step = steps[row | before | np.uint32(buffer[here + place])]
            passed = place + one
            room[count] = here + passed
            if step & ended:
                count += 1
                stop = min(length, here + passed + np.uint64(most))
            row = step & ~ended
        end = min(here + size, stop)
        if end > here + passed:
            row = steps[row | gap] & ~ended
        here = end
    return count, int(here), int(row >> ROW), begin if count == 0 else int(room[count - 1])


@inlined
def _same(buffer: ByteArray, at: np.uint64, byte: np.uint8) -> np.uint64:
    """Return which of the 64 bytes at a place are this one, the first byte in the lowest bit."""
    bits = np.uint64(0)
    for place in range(BLOCK):
        bits |= np.uint64(buffer[at + np.uint64(place)] == byte) << np.uint64(place)
    return bits


@inlined
def _lowest(bits: np.uint64) -> np.uint64:
    """Return the number of the lowest bit that is set."""
    number, half = np.uint64(0), np.uint64(BLOCK // 2)
    while half > np.uint64(0):
        if bits & ((np.uint64(1) << half) - np.uint64(1)) == np.uint64(0):
            bits >>= half
            number += half
        half >>= np.uint64(1)
    return number


@compiled
def without(buffer: ByteArray, begin: Positions, end: Positions, delimiter: ByteArray, returns: bool) -> Positions:
    """Return where records end without their delimiters, if they have one, and without a return before it."""
    found = np.empty(len(begin), np.int64)
    for number in range(len(begin)):
        stop = end[number] - len(delimiter)
        ended = stop >= begin[number]
        for place in range(len(delimiter) if ended else 0):
            ended = ended and buffer[stop + place] == delimiter[place]
        if ended and returns and stop > begin[number] and buffer[stop - 1] == RETURN:
            stop -= 1
        found[number] = stop if ended else end[number]
    return found


@compiled
def summarise(
    classes: ByteArray,
    following: ByteArray,
    ended: npt.NDArray[np.bool_],
    buffer: ByteArray,
    after: Positions,
    first: Positions,
    last: Positions,
) -> None:
    """Follow all states side by side; states that meet are followed as one once each of them has ended a record."""
    states = len(following)
    leader, met = np.arange(states), np.zeros(states, np.int64)
    active, count = np.arange(states), states
    for state in range(states):
        after[state], first[state], last[state] = state, -1, -1
    for at in range(len(buffer)):
        kind = classes[buffer[at]]
        new = False
        for number in range(count):
            state = active[number]
            if ended[after[state], kind]:
                last[state] = at + 1
                if first[state] == -1:
                    first[state] = at + 1
                    new = True
            after[state] = following[after[state], kind]
        if new or at % REGROUPED_EVERY == 0:
            kept = 0
            for number in range(count):
                state = active[number]
                joined = False
                for other in active[:kept]:
                    if after[other] == after[state] and first[other] != -1 and first[state] != -1:
                        leader[state], met[state], joined = other, at + 1, True
                        break
                if not joined:
                    active[kept] = state
                    kept += 1
            count = kept
    for state in range(states - 1, -1, -1):
        head = state
        while leader[head] != head:
            if last[leader[head]] > met[head]:
                last[state] = last[leader[head]]
            head = leader[head]
        after[state] = after[head]

"""Finite automata that cut a stream of bytes into records, wherever the chunks were cut.

An automaton is built from a step function, `step(state, byte) -> (state, ended)`, by following it from the start state
to every reachable state.

Automata compose. The *summary* of a chunk gives, for every state in which the chunk could begin, the state in which it
ends and where its first and last records end. So chunks can be summarised in parallel and in any order, and a scan over
the summaries finds the state in which each chunk really begins. Nothing is guessed and nothing is read twice. The idea
comes from ParPaRaw (Stehle and Jacobsen, 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import load_u64, lowest_set_bit
from windrow.columnar.compiled import ByteArray, Flags, Ints, compile_lazily, inline
from windrow.errors import SettingsError

Step = Callable[[Any, int], tuple[Hashable, bool]]
Open = Callable[[Any], bool]
MAX_STATES = 1_000  # 4 KiB each; the deepest JSON needs 601
BLOCK = 64  # bytes, one for each bit of a word
ROW = np.uint32(10)  # bits of an index into the steps of one state
MAX_MARKS = 8
GATHERING = np.uint64(0x0102040810204080)


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """The transition table of `_follow`, the bytes it must examine one by one (`marks`), and the `open` states.

    Every stream and every record begins in state 0. A source that ends in an `open` state ends inside a record whose
    quote or brace was not closed. No record ends after the state `malformed` (-1: there is none).
    """

    steps: npt.NDArray[np.uint32]
    marks: ByteArray
    open: npt.NDArray[np.bool_]
    malformed: int = -1

    @classmethod
    def of(
        cls, start: Hashable, step: Step, is_open: Open = lambda state: False, malformed: Hashable = None
    ) -> Automaton:
        """Build an automaton from a step function. Raises SettingsError if it has too many states.

        The state `malformed` leads only to itself. Following stops before a byte that leads there and "ends" a record.
        """
        numbers: dict[Hashable, int] = {start: 0}
        rows: list[list[tuple[int, bool]]] = []
        waiting = [start]
        while waiting:
            state = waiting.pop(0)
            row = []
            for byte in range(256):
                after, ended = step(state, byte)
                if after not in numbers:
                    numbers[after] = len(numbers)
                    waiting.append(after)
                row.append((numbers[after], ended))
            rows.append(row)
            if len(numbers) > MAX_STATES:
                raise SettingsError("the delimiters of the format are too long", "Use shorter ones.")
        following, ended = np.moveaxis(np.array(rows, np.int64), 2, 0)
        steps, marks = _tables(following, ended > 0)
        is_open_state = np.array([is_open(state) for state in numbers], np.bool_)
        return cls(steps, marks, is_open_state, numbers.get(malformed, -1))

    @property
    def states(self) -> int:
        """Return the number of states."""
        return int(self.open.size)

    def follow(self, buffer: ByteArray, at: int, state: int, start: int, most: int) -> ScanResult:
        """Find where records end from position `at` on, in state `state`, within a record that began at `start`.

        Stops where a record would have more than `most` bytes, and before the byte that shows a record to be malformed.
        """
        ends, source, marks = [], read_only(buffer), np.empty(BLOCK, np.uint8)
        room = np.empty(max(16 * BLOCK, (len(buffer) - at) // 16), np.int64)
        while True:
            count, at, state, start = _follow(
                self.steps, self.marks, source, at, state, start, start + most, room, marks, self.malformed
            )
            ends.append(room[:count].copy())
            if count + BLOCK <= len(room):
                return ScanResult(np.concatenate(ends), int(at), int(state), int(start))

    def summary(self, buffer: ByteArray) -> TransitionSummary:
        """Return what the bytes do from every possible start state."""
        rows = []
        for state in range(self.states):
            run = self.follow(buffer, 0, state, 0, len(buffer) + 1)
            ends = run.ends
            places = (ends[0], ends[-1], np.diff(ends).max(initial=0)) if ends.size else (-1, -1, 0)
            rows.append((run.state, *map(int, places)))
        return TransitionSummary(*map(list, zip(*rows, strict=True)))


def _tables(following: Ints, ended: Flags) -> tuple[npt.NDArray[np.uint32], ByteArray]:
    """Return the steps and the marks, given the next state for each state and byte, and whether a record ended."""
    quiet = _quiet(following, ended)
    table = np.zeros((len(following), 1 << ROW), np.uint32)
    table[:, :256] = following << ROW | ended
    if quiet.any():
        after = following[:, np.argmax(quiet)]
        table[:, 256:512] = table[after, :256]
        table[:, 512] = after << ROW
    return table.ravel(), np.flatnonzero(~quiet).astype(np.uint8)


def _quiet(following: Ints, ended: Flags) -> Flags:
    """Find the largest group of bytes that act alike in every state, and of which a run acts like a single byte."""
    again = np.take_along_axis(following, following, 0)
    calm: Flags = (again == following).all(0) & ~ended.any(0)
    group = np.unique(following, axis=1, return_inverse=True)[1].ravel()
    return calm & (group == np.argmax(np.bincount(group[calm], minlength=1)))


@dataclass(frozen=True, slots=True, eq=False)
class ScanResult:
    """Where records ended (after delimiters), where and in which state following stopped, and where the rest begins."""

    ends: Ints
    at: int
    state: int
    start: int


class TransitionSummary(NamedTuple):
    """What a run of bytes does: for each state before it, the state `after` it and where records end.

    `first` and `last` are the positions after the first and the last delimiter, -1 if no record ends. `longest` is the
    size of the longest record between these.
    """

    after: list[int]
    first: list[int]
    last: list[int]
    longest: list[int]


@compile_lazily
def _follow(
    steps: npt.NDArray[np.uint32],
    marks: ByteArray,
    buffer: ByteArray,
    at: int,
    state: int,
    start: int,
    limit: int,
    room: Ints,
    result: ByteArray,
    malformed: int,
) -> tuple[int, int, int, int]:
    """Write where records end, until there is little room, a record is malformed or too long, or no bytes are left.

    A step is the index in `steps` at which the next state begins; its lowest bit says whether a record ended. Only the
    bytes in `marks` are examined (or all bytes, if there are too many marks). A gap is a run of other bytes, which has
    the same effect as one of them. Each state has steps for a byte, for a byte after a gap, and for a gap.
    """
    count, most, length = 0, limit - start, np.uint64(len(buffer))
    wrong = np.uint32(malformed) << ROW if malformed >= 0 else ~np.uint32(0)  # which matches no state
    row, ended, gap_before, gap = np.uint32(state) << ROW, np.uint32(1), np.uint32(256), np.uint32(512)
    here, one, none, width = np.uint64(at), np.uint64(1), np.uint64(0), np.uint64(BLOCK)
    stop = min(length, np.uint64(limit))
    while here < stop and count + BLOCK <= len(room):
        if here + width <= length and len(marks) <= MAX_MARKS:
            size, bits = width, _find_marks(buffer, here, marks, result)
        else:
            size = min(width, length - here)
            bits = ~none >> (width - size)
        passed = none
        while bits != none:
            place = lowest_set_bit(bits)
            bits &= bits - one
            if here + place >= stop:
                break
            before = gap_before if place > passed else np.uint32(0)
            step = steps[row | before | np.uint32(buffer[here + place])]
            passed = place + one
            room[count] = here + passed
            if step & ended:
                if step & ~ended == wrong:
                    return count, int(here + place), int(wrong >> ROW), start if count == 0 else int(room[count - 1])
                count += 1
                stop = min(length, here + passed + np.uint64(most))
            row = step & ~ended
        end = min(here + size, stop)
        if end > here + passed:
            row = steps[row | gap] & ~ended
        here = end
    return count, int(here), int(row >> ROW), start if count == 0 else int(room[count - 1])


@inline
def _find_marks(buffer: ByteArray, at: np.uint64, marks: ByteArray, result: ByteArray) -> np.uint64:
    """Return which of the 64 bytes at a place are marks, the first byte in the lowest bit; `result` has room for them.

    The compiler compares all bytes with a mark at once. A multiplication then gathers the lowest bits of eight bytes.
    """
    result[:] = 0
    for mark in marks:
        for place in range(BLOCK):
            result[place] |= buffer[at + np.uint64(place)] == mark
    bits = np.uint64(0)
    for place in range(0, BLOCK, 8):
        gathered = load_u64(result, np.uint64(place)) * GATHERING >> np.uint64(56)
        bits |= gathered << np.uint64(place)
    return bits

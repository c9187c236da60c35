"""Finite automata that cut a stream of bytes into records, wherever the chunks were cut.

An automaton is built from a step function, `step(state, byte) -> (state, ended)`, by following it from the start state
to every reachable state. Bytes that every state treats alike share a class, so the tables are small and stay in the
processor's cache.

Automata compose. The *summary* of a chunk gives, for every state in which the chunk could begin, the state in which it
ends and where its first and last records end. So chunks can be summarised in parallel and in any order, and a scan over
the summaries finds the state in which each chunk really begins. Nothing is guessed and nothing is read twice. The idea
comes from ParPaRaw (Stehle and Jacobsen, 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.columnar.arrow import read_only
from windrow.errors import SettingsError
from windrow.formats.kernel import BLOCK, ROW, follow, summarise

Step = Callable[[Any, int], tuple[Hashable, bool]]
Open = Callable[[Any], bool]
ByteArray = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
MOST_STATES = 255


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """The tables: the class of each of the 256 bytes; the next state by state and class, and whether a record ended.

    Every stream and every record begins in state 0. A source that ends in an `open` state ends within a record: a
    quote or a brace is not closed.
    """

    classes: ByteArray
    following: ByteArray
    ended: npt.NDArray[np.bool_]
    open: npt.NDArray[np.bool_]
    steps: npt.NDArray[np.uint32] = field(init=False)  # the transition table of `kernel.follow`
    marks: ByteArray = field(init=False)  # the bytes that it must look at one by one

    def __post_init__(self) -> None:
        """Prepare `kernel.follow`."""
        steps, marks = self._steps()
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "marks", marks)

    @classmethod
    def of(cls, start: Hashable, step: Step, is_open: Open = lambda state: False) -> Automaton:
        """Build an automaton from a step function. Raises SettingsError if it has too many states."""
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
            if len(numbers) > MOST_STATES:
                raise SettingsError("the delimiters of the format are too long", "Use shorter ones.")
        columns = list(zip(*rows, strict=True))
        kinds = {column: number for number, column in enumerate(dict.fromkeys(columns))}
        return cls(
            np.array([kinds[column] for column in columns], np.uint8),
            np.array([[after for after, _ in column] for column in kinds], np.uint8).T.copy(),
            np.array([[ended for _, ended in column] for column in kinds], np.bool_).T.copy(),
            np.array([is_open(state) for state in numbers], np.bool_),
        )

    @property
    def states(self) -> int:
        """Return the number of states."""
        return len(self.following)

    def follow(self, buffer: ByteArray, at: int, state: int, begin: int, most: int) -> Followed:
        """Find where records end from position `at` on, in state `state`, within a record that began at `begin`.

        Stops where a record would have more than `most` bytes.
        """
        ends = []
        room = np.empty(max(16 * BLOCK, (len(buffer) - at) // 16), np.int64)
        while True:
            count, at, state, begin = follow(
                self.steps, self.marks, read_only(buffer), at, state, begin, begin + most, room
            )
            ends.append(room[:count].copy())
            if count + BLOCK <= len(room):
                return Followed(np.concatenate(ends), int(at), int(state), int(begin))

    def _steps(self) -> tuple[npt.NDArray[np.uint32], ByteArray]:
        following = self.following[:, self.classes].astype(np.uint32)
        ended = self.ended[:, self.classes]
        table = np.zeros((self.states, 1 << ROW), np.uint32)
        table[:, :256] = following << ROW | ended
        quiet, others = self._quiet
        if others.size:
            after = following[:, others[0]]
            table[:, 256:512] = table[after, :256]
            table[:, 512] = after << ROW
        return table.ravel(), np.flatnonzero(~quiet).astype(np.uint8)

    @property
    def _quiet(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Find the largest class of bytes of which a run does no more than a single one, in any state."""
        again = np.take_along_axis(self.following, self.following.astype(np.int64), 0)
        calm = (again == self.following).all(0) & ~self.ended.any(0)
        size = np.bincount(self.classes, minlength=calm.size) * calm
        quiet = (self.classes == np.argmax(size)) & calm.any()
        return quiet, np.flatnonzero(quiet)

    def summary(self, buffer: ByteArray) -> Summary:
        """Return what the bytes do from every possible start state."""
        after = np.empty(self.states, np.int64)
        first, last = np.empty_like(after), np.empty_like(after)
        summarise(self.classes, self.following, self.ended, buffer, after, first, last)
        return Summary(after, first, last)


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """Where records ended (after their delimiters), where following stopped, in which state, and the last begin."""

    ends: Positions
    at: int
    state: int
    begin: int


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """What a run of bytes does: for each state before it, the state `after` it and where records end.

    `first` and `last` are the positions after the first and the last delimiter, -1 if no record ends.
    """

    after: Positions
    first: Positions
    last: Positions


def scan(summaries: Sequence[Summary], state: int = 0) -> list[int]:
    """Return the state in which each of some neighbouring runs begins, and finally the one in which the last ends."""
    states = [state]
    for summary in summaries:
        states.append(int(summary.after[states[-1]]))
    return states

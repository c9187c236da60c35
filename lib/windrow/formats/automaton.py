"""Finite automata over bytes: what cuts a stream of bytes into records, wherever it was cut into chunks before.

An automaton is built from a step function, `step(state, byte) -> (state, ended)`, by following it from its start state
to all that can be reached. Bytes that every state treats alike share a class, so its tables are small and stay in the
cache of the processor.

Automata compose. What a chunk does is told by its *summary*: for every state in which it could begin, in which it
ends, and where its first and its last record end. Summaries of neighbours give the summary of both, in any grouping; so
chunks are summarised at the same time, in any order, and a scan over the summaries says in which state each really
begins. Nothing is guessed and nothing is read again. The idea is that of ParPaRaw (Stehle and Jacobsen, 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import BLOCK
from windrow.errors import SettingsError
from windrow.formats.kernel import ROW, follow, summarise

Step = Callable[[Any, int], tuple[Hashable, bool]]
Open = Callable[[Any], bool]
ByteArray = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
MOST_STATES = 255
NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """The tables: `classes` of the 256 bytes; for state and class the state that follows, and whether a record ended.

    State 0 is where a stream begins, and where every record does. In an `open` state no record can end where a source
    does: a quote or a brace is not closed.
    """

    classes: ByteArray
    following: ByteArray
    ended: npt.NDArray[np.bool_]
    open: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, start: Hashable, step: Step, is_open: Open = lambda state: False) -> Automaton:
        """Follow a step function from a state. Raises SettingsError for one with too many states."""
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
        """Return how many states it has."""
        return len(self.following)

    def follow(self, buffer: ByteArray, at: int, state: int, begin: int, most: int) -> Followed:
        """Find where records end, from position `at` on; there it is in `state`, and a record began at `begin`.

        It stops where a record would have more than `most` bytes.
        """
        parts = []
        room = np.empty(max(16 * BLOCK, (len(buffer) - at) // 16), np.int64)
        steps, marks = self._steps
        while True:
            count, at, state, begin = follow(steps, marks, read_only(buffer), at, state, begin, begin + most, room)
            parts.append(room[:count].copy())
            if count + BLOCK <= len(room):
                return Followed(np.concatenate(parts), int(at), int(state), int(begin))

    @property
    def _steps(self) -> tuple[npt.NDArray[np.uint32], ByteArray]:
        """Return the table that `kernel.follow` goes by, and which bytes it must look at one by one."""
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
        """Tell which bytes form the largest class whose bytes change nothing behind each other, in any state."""
        again = np.take_along_axis(self.following, self.following.astype(np.int64), 0)
        calm = (again == self.following).all(0) & ~self.ended.any(0)
        size = np.bincount(self.classes, minlength=calm.size) * calm
        quiet = (self.classes == np.argmax(size)) & calm.any()
        return quiet, np.flatnonzero(quiet)

    def summary(self, buffer: ByteArray) -> Summary:
        """Return what the bytes do from every state in which they could begin."""
        after = np.empty(self.states, np.int64)
        first, last = np.empty_like(after), np.empty_like(after)
        summarise(self.classes, self.following, self.ended, buffer, after, first, last)
        return Summary(len(buffer), after, first, last)


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """Where records ended, each behind its delimiter; where it stopped, in which state, and where a record began."""

    ends: Positions
    at: int
    state: int
    begin: int


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """What a run of `length` bytes does: for each state before it the one behind it, and where records end.

    `first` and `last` are the positions behind the first and the last delimiter, -1 where no record ends.
    """

    length: int
    after: Positions
    first: Positions
    last: Positions

    def then(self, other: Summary) -> Summary:
        """Return what both do, one behind the other. It is associative."""
        first, last = (
            np.where(found == NONE, NONE, found + self.length)
            for found in (other.first[self.after], other.last[self.after])
        )
        return Summary(
            self.length + other.length,
            other.after[self.after],
            np.where(self.first == NONE, first, self.first),
            np.where(last == NONE, self.last, last),
        )


def scan(summaries: Sequence[Summary], state: int = 0) -> list[int]:
    """Return in which state each of some neighbours begins, and behind them the state in which the last one ends."""
    states = [state]
    for summary in summaries:
        states.append(int(summary.after[states[-1]]))
    return states

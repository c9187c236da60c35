"""Rounds of measurements: what a device measures together, and whether it stays together in one batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windrow.batching.columns import Columns, Ints, Numbers

PERCENT = 100


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of streams whose types repeat: messages closer in event time than half the time between repeats.

    The time between repeats is that of the stream's most frequent type (the median). A round has two messages or
    more; a duplicate counts once. `place` is that of each row's message in the order of rounds, `begin` where each
    round begins, and `several` tells which have more than one message.
    """

    place: Numbers
    begin: Ints
    several: np.ndarray

    @classmethod
    def of(cls, columns: Columns) -> Rounds:
        """Find the rounds, in messages prepared for the kernel."""
        numbers = columns.numbers
        streams = columns.begin.size - 1
        stream, list_of = np.empty((2, numbers.position_at.size), np.int64)
        stream[numbers.place] = np.repeat(np.arange(streams), np.diff(columns.begin))
        list_of[numbers.place] = numbers.list_of
        time = numbers.time_at[numbers.position_at]
        between = _between_repeats(stream, list_of, time, streams)
        order = np.lexsort((time, stream))
        stream, time = stream[order], time[order]
        first = np.append(True, (np.diff(stream) != 0) | (2 * np.diff(time) >= between[stream[1:]]))
        begin = np.flatnonzero(first)
        several = (np.diff(np.append(begin, time.size)) > 1) & (between[stream[begin]] > 0)
        rank = np.empty(order.size, np.int32)
        rank[order] = np.arange(order.size)
        place = np.empty(columns.row_of.size, np.int32)
        place[columns.row_of] = rank[numbers.place]
        return cls(place, begin, several)

    def whole_percent(self, members: Numbers, sizes: Ints) -> float | None:
        """Return how many rounds lie in one batch with all their messages, None if there is no round.

        `members` are the accepted rows batch by batch, `sizes` says how many each batch has.
        """
        if not self.several.any():
            return None
        batch = np.full(self.place.max() + 1, -1)
        batch[self.place[members]] = np.repeat(np.arange(sizes.size), sizes)
        first, last = (merge.reduceat(batch, self.begin)[self.several] for merge in (np.minimum, np.maximum))
        return float(PERCENT * ((first == last) & (first >= 0)).mean())


def _between_repeats(stream: Ints, list_of: Ints, time: Ints, streams: int) -> Ints:
    """Return for each stream the shortest median time between messages of a type, 0 where no type comes again."""
    same = np.diff(list_of) == 0
    gaps, lists = np.diff(time)[same], list_of[1:][same]
    order = np.lexsort((gaps, lists))
    begin = np.flatnonzero(np.append(True, np.diff(lists[order]) != 0)[: gaps.size])
    middle = order[(begin + np.append(begin[1:], gaps.size) - 1) // 2]
    shortest = np.full(streams, np.iinfo(np.int64).max)
    np.minimum.at(shortest, stream[1:][same][middle], gaps[middle])
    return np.where(shortest == np.iinfo(np.int64).max, 0, shortest)

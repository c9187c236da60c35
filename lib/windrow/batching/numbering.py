"""Number the messages of a stream for the kernel: positions, lists and places.

A *position* numbers a distinct event time of a stream, a *list* a type of a stream, and a *place* a distinct event time
in a list. The numbering continues from one stream to the next, so the positions and the lists of a stream are ranges,
and so are the places of a list. Positions and places are in time order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windrow.columnar.compiled import Ints, Numbers, compiled_in_place

ONE = np.uint64(1)


class SlotNumbering(NamedTuple):
    """The numbers of slots, and their meaning."""

    position: Numbers  # per slot
    list_of: Numbers  # per slot
    place: Numbers  # per slot
    time_at: Ints  # per position
    position_start: Ints  # per stream, and at the end: its positions
    place_begin: Ints  # per list, and at the end: its places
    position_at: Numbers  # per place


def number(ranked: Numbers, start: Ints, event_time: Ints, kind: Numbers, kinds: int) -> SlotNumbering:
    """Number the slots of each stream, `ranked` by (event time, kind); `start` cuts them by stream (S + 1).

    `kind` numbers the types from 0 to `kinds` - 1.
    """
    slots = ranked.size
    position, list_of, place, position_at = np.empty((4, slots), np.int32)
    time_at, latest = np.empty((2, slots), np.int64)
    position_start, place_begin = np.zeros_like(start), np.zeros(slots + 1, np.int64)
    numbering = SlotNumbering(position, list_of, place, time_at, position_start, place_begin, position_at)
    lists = _number(ranked, start, event_time, kind, numbering, np.full(kinds, -1), np.zeros(kinds, np.int64), latest)
    return numbering._replace(
        time_at=time_at[: position_start[-1]],
        place_begin=place_begin[: lists + 1].copy(),
        position_at=position_at[: place_begin[lists]],
    )


@compiled_in_place
def _number(ranked, start, event_time, kind, numbering, stream_here, list_here, latest):  # type: ignore[no-untyped-def]
    """Fill `numbering`, and return how many lists there are.

    `list_here` has the list of each kind in the stream `stream_here`, `latest` the last time of each list. The places
    of a list are counted first. Then each list gets its range, after those of the lists before it.
    """
    positions, lists = 0, 0
    for stream in range(start.size - 1):
        first_position, first_list = positions, lists
        for at in range(start[stream], start[stream + 1]):
            slot = np.uint64(ranked[at])
            t, k = event_time[slot], np.uint64(kind[slot])
            if positions == first_position or t != numbering.time_at[positions - 1]:
                numbering.time_at[positions] = t
                positions += 1
            numbering.position[slot] = positions - 1
            if stream_here[k] != stream:
                stream_here[k], list_here[k] = stream, lists
                numbering.place_begin[lists + 1] = 0
                lists += 1
            list_number = np.uint64(list_here[k])
            if numbering.place_begin[list_number + ONE] == 0 or t != latest[list_number]:
                latest[list_number] = t
                numbering.place_begin[list_number + ONE] += 1
            numbering.list_of[slot] = list_number
            numbering.place[slot] = numbering.place_begin[list_number + ONE] - 1
        numbering.position_start[stream + 1] = positions
        for before in range(first_list, lists):
            numbering.place_begin[before + 1] += numbering.place_begin[before]
        for at in range(start[stream], start[stream + 1]):
            q = numbering.place_begin[numbering.list_of[at]] + numbering.place[at]
            numbering.place[at], numbering.position_at[q] = q, numbering.position[at]
    return lists

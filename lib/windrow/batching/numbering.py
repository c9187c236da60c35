"""Positions, lists and places: the numbers under which the kernel knows the messages of a stream.

A *position* stands for a distinct event time of a stream, a *list* for a type of a stream, a *place* for a distinct
event time in a list. Each of them is numbered through, stream by stream: the positions and the lists of a stream are
one range, and so are the places of a list, both in the order of time.
"""

from __future__ import annotations

import numpy as np

from windrow.compiled import compiled


@compiled
def number(ranked, begin, event_time, kind, kinds):  # type: ignore[no-untyped-def]
    """Number the slots of each stream, `ranked` by (event time, kind); `begin` cuts them by stream (S + 1).

    `kind` numbers the types from 0 to `kinds` - 1. Returns per slot the position, list and place, the event time of
    each position, where the positions of each stream begin (S + 1), where the places of each list begin, and the
    position of each place.
    """
    slots = ranked.size
    position, list_of, place = np.empty(slots, np.int32), np.empty(slots, np.int32), np.empty(slots, np.int32)
    time_at, position_begin = np.empty(slots, np.int64), np.zeros(begin.size, np.int64)
    list_here, stream_here = np.zeros(kinds, np.int32), np.full(kinds, -1)
    list_size, latest = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    place_begin = np.zeros(slots + 1, np.int64)
    position_at = np.empty(slots, np.int32)
    positions, lists = 0, 0
    for stream in range(begin.size - 1):
        first_position, first_list = positions, lists
        for at in range(begin[stream], begin[stream + 1]):
            slot = ranked[at]
            t = event_time[slot]
            if positions == first_position or t != time_at[positions - 1]:
                time_at[positions] = t
                positions += 1
            position[slot] = positions - 1
            k = kind[slot]
            if stream_here[k] != stream:
                stream_here[k], list_here[k] = stream, lists
                lists += 1
            one = list_here[k]
            if list_size[one] == 0 or t != latest[one]:
                latest[one] = t
                list_size[one] += 1
            list_of[slot] = one
            place[slot] = list_size[one] - 1
        position_begin[stream + 1] = positions
        for one in range(first_list, lists):
            place_begin[one + 1] = place_begin[one] + list_size[one]
        for slot in range(begin[stream], begin[stream + 1]):
            one = list_of[slot]
            q = place_begin[one] + place[slot]
            place[slot], position_at[q] = q, position[slot]
    place_begin = place_begin[: lists + 1].copy()
    return position, list_of, place, time_at[:positions], position_begin, place_begin, position_at[: place_begin[-1]]

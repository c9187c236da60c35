"""The kernel: what becomes of each message, and which windows a stream has, as one compiled function.

Streams are independent, so the kernel takes them one after the other. Inside a stream it never stores which batch a
message is in. It works on two orders that were computed beforehand: *positions* number the distinct event times of a
stream, *places* number its (type, event time) pairs. Four structures over them answer every question of the rules:

- `windows`, a set of positions: the earliest accepted time of each active window. Active windows never overlap, so
  the window that holds a message is its predecessor in this set or, when the window begins before its first message,
  its successor.
- `held`, a set of places: the accepted messages. A neighbour of the same type inside the window is a conflict, the
  same place a duplicate.
- `occupied`, a set of positions with an accepted message: where a window splits, its last message before the split.
- `heavy`, octets by position: what a window weighs is their sum from its first position to its last.

A split changes an end and adds a window; nothing moves. Every step costs log64 of the stream's rows at most, whatever
the batches hold, but for weighing: a split leaves both halves with the weight of the whole, which they cannot exceed,
and only when that is too much for a batch is a half weighed, once.
"""

from __future__ import annotations

import numpy as np

from windrow.batching.bits import LEVELS, contains, insert, predecessor, remove, successor
from windrow.compiled import compiled

ACCEPTED, TOO_OLD, TOO_FUTURISTIC, DUPLICATE = 0, 1, 2, 3
BY_MESSAGE, BY_CONFLICT, BY_SIZE = 0, 1, 2
NEVER = np.iinfo(np.int64).min
NONE = -1


@compiled
def decide(  # type: ignore[no-untyped-def]
    new_begin, visit, position, place, processing_time, octets,
    time_at, position_begin, type_at, position_of_place, place_begin,
    open_begin, open_rows_begin, open_start, open_end, open_by, sweep,
    window, max_delay, max_leap, max_octets, start_at_arrival,
    fate, off_by, start, end, first, last, weight, opened_by, closed_at, changed, window_at,
):  # fmt: skip
    """Decide every new message and return how many windows there are; the arrays of the last line are filled.

    Shapes: `new_begin`, `position_begin`, `place_begin`, `open_begin` cut their arrays by stream (S + 1);
    `visit` lists the new rows stream by stream in processing order; `position`, `place`, `octets`, `processing_time`
    are per row (open messages first, then new ones), the first two counted within the stream; `time_at` is per
    position, `type_at` and `position_of_place` per place. `sweep` is the last `now` of each stream.
    Times in microseconds. Window k < number of open windows is the k-th open window given.
    """
    streams = new_begin.size - 1
    most_positions, most_places = 1, 1
    for stream in range(streams):
        most_positions = max(most_positions, position_begin[stream + 1] - position_begin[stream])
        most_places = max(most_places, place_begin[stream + 1] - place_begin[stream])
    set_begin = np.zeros(LEVELS + 1, np.int64)
    held_begin = np.zeros(LEVELS + 1, np.int64)
    for level in range(LEVELS):
        set_begin[level + 1] = set_begin[level] + (most_positions >> (6 * level + 6)) + 1
        held_begin[level + 1] = held_begin[level] + (most_places >> (6 * level + 6)) + 1
    windows = np.zeros(set_begin[LEVELS], np.uint64)
    occupied = np.zeros(set_begin[LEVELS], np.uint64)
    held = np.zeros(held_begin[LEVELS], np.uint64)
    heavy = np.zeros(most_positions, np.int64)
    weighed = np.empty(start.size, np.bool_)
    weigh = max_octets > 0

    count = open_start.size
    for stream in range(streams):
        base = position_begin[stream]
        positions = position_begin[stream + 1] - base
        place_base = place_begin[stream]
        places = place_begin[stream + 1] - place_base
        for level in range(LEVELS):
            here = set_begin[level]
            words = (positions >> (6 * level + 6)) + 1
            windows[here : here + words] = 0
            occupied[here : here + words] = 0
            held[held_begin[level] : held_begin[level] + (places >> (6 * level + 6)) + 1] = 0

        heavy[:positions] = 0

        head = NONE
        for w in range(open_begin[stream], open_begin[stream + 1]):
            start[w], end[w], opened_by[w] = open_start[w], open_end[w], open_by[w]
            weight[w], weighed[w] = 0, True
            low, high = positions, -1
            for row in range(open_rows_begin[w], open_rows_begin[w + 1]):
                p = position[row]
                low, high = min(low, p), max(high, p)
                insert(occupied, set_begin, p)
                insert(held, held_begin, place[row])
                weight[w] += octets[row]
                heavy[p] += octets[row]
            first[w], last[w] = low, high
            closed_at[w], changed[w] = NEVER, False
            window_at[base + low] = w
            insert(windows, set_begin, low)
            if head == NONE:
                head = w

        b, left, right = NONE, NONE, NONE
        for visited in range(new_begin[stream], new_begin[stream + 1] + 1):
            at_end = visited == new_begin[stream + 1]
            row = visit[visited] if not at_end else 0
            now = sweep[stream] if at_end else processing_time[row]

            while head != NONE and now >= end[head] + max_delay:
                closed_at[head], changed[head] = end[head] + max_delay, True
                remove(windows, set_begin, first[head])
                following = successor(windows, set_begin, first[head] + 1, positions)
                head = window_at[base + following] if following >= 0 else NONE
            if at_end:
                break

            p, q = position[row], place[row]
            t = time_at[base + p]
            if t < now - max_delay:
                fate[row], off_by[row] = TOO_OLD, now - max_delay - t
                continue
            if t > now + max_leap:
                fate[row], off_by[row] = TOO_FUTURISTIC, t - now - max_leap
                continue

            # the active window that holds t: the last one used (t is not in one that closed), else the neighbours of p
            if b == NONE or t < start[b] or t >= end[b]:
                b, right = NONE, NONE
                before = predecessor(windows, set_begin, p)
                left = window_at[base + before] if before >= 0 else NONE
                if left != NONE and t < end[left]:
                    b = left
                else:
                    after = successor(windows, set_begin, p + 1, positions)
                    right = window_at[base + after] if after >= 0 else NONE
                    if right != NONE and t >= start[right]:
                        b = right

            split_at = NONE
            if b == NONE:
                begin = now - max_delay if start_at_arrival else t
                if left != NONE:
                    begin = max(begin, end[left])
                if t >= begin + window:
                    begin = t
                b = count
                count += 1
                start[b], end[b] = begin, begin + window
                if right != NONE:
                    end[b] = min(end[b], start[right])
                first[b], last[b], weight[b], weighed[b] = p, p, 0, True
                opened_by[b], closed_at[b] = BY_MESSAGE, NEVER
                window_at[base + p] = b
                insert(windows, set_begin, p)
                if head == NONE or p < first[head]:
                    head = b
            else:
                if contains(held, held_begin, q):
                    fate[row] = DUPLICATE
                    continue
                kind = type_at[place_base + q]
                other = predecessor(held, held_begin, q)
                if other >= 0 and type_at[place_base + other] == kind:
                    if time_at[base + position_of_place[place_base + other]] >= start[b]:
                        split_at = p
                if split_at == NONE:
                    other = successor(held, held_begin, q + 1, places)
                    if other >= 0 and type_at[place_base + other] == kind:
                        if time_at[base + position_of_place[place_base + other]] < end[b]:
                            split_at = position_of_place[place_base + other]

            insert(occupied, set_begin, p)
            insert(held, held_begin, q)
            heavy[p] += octets[row]
            weight[b] += octets[row]
            changed[b] = True
            last[b] = max(last[b], p)
            if p < first[b]:
                remove(windows, set_begin, first[b])
                first[b] = p
                window_at[base + p] = b
                insert(windows, set_begin, p)

            # a conflict split, then at most two size splits: before the message, and after it
            cause = BY_CONFLICT
            for attempt in range(3):
                if attempt > 0:
                    cause = BY_SIZE
                    split_at = NONE
                    if not weigh or weight[b] <= max_octets:
                        break
                    if not weighed[b]:
                        weight[b], weighed[b] = heavy[first[b] : last[b] + 1].sum(), True
                        if weight[b] <= max_octets:
                            break
                    if attempt == 1 and first[b] < p:
                        split_at = p
                    elif attempt == 2 and last[b] > p:
                        split_at = successor(occupied, set_begin, p + 1, positions)
                if split_at == NONE:
                    continue
                after = successor(windows, set_begin, first[b] + 1, positions)
                half = count
                count += 1
                start[half] = time_at[base + split_at]
                end[half] = max(start[half] + window, end[b])
                if after >= 0:
                    end[half] = min(end[half], start[window_at[base + after]])
                end[b] = start[half]
                first[half], last[half] = split_at, last[b]
                last[b] = predecessor(occupied, set_begin, split_at - 1)
                weight[half], weighed[half], weighed[b] = weight[b], False, False
                opened_by[half], closed_at[half], changed[half] = cause, NEVER, True
                window_at[base + split_at] = half
                insert(windows, set_begin, split_at)
                if p >= split_at:
                    b = half
    return count


@compiled
def emit(  # type: ignore[no-untyped-def]
    ranked, position, stream_of, position_begin, octets, accepted, window_at, first, closed_at, max_octets,
    members, batch_begin, batch_window, batch_part, batch_octets, batch_oversize,
):  # fmt: skip
    """List the accepted rows batch by batch and return how many batches there are.

    `ranked` holds all rows by (stream, event time, type). A window begins where its first position does; a closed
    batch above the maximum becomes numbered parts, each within it. `members` gets the rows, `batch_begin` where the
    rows of each batch begin (and at the end where the last one ends).
    """
    count, member, current, previous = 0, 0, NONE, NONE
    for index in range(ranked.size):
        row = ranked[index]
        if not accepted[row]:
            continue
        w = window_at[position_begin[stream_of[row]] + position[row]]
        if w != NONE and w != current and first[w] == position[row]:
            current = w
        starts = current != previous
        overflows = (
            not starts
            and max_octets > 0
            and closed_at[current] != NEVER
            and batch_octets[count - 1] + octets[row] > max_octets
        )
        if starts or overflows:
            batch_begin[count] = member
            batch_window[count] = current
            batch_part[count] = 0 if starts else batch_part[count - 1] + 1
            batch_octets[count] = 0
            batch_oversize[count] = False
            previous = current
            count += 1
        members[member] = row
        member += 1
        batch_octets[count - 1] += octets[row]
        if max_octets > 0 and octets[row] > max_octets:
            batch_oversize[count - 1] = True
    batch_begin[count] = member
    return count

"""The kernel: what becomes of each message, and which windows a stream has, as one compiled function.

Streams are independent, so the kernel takes them one after the other. Inside a stream it never stores which batch a
message is in. It works on two orders that were computed beforehand: *positions* number the distinct event times of a
stream, *places* number its (type, event time) pairs. Four structures over them answer every question of the rules:

- `windows`, a set of positions: the earliest accepted time of each active window. Active windows never overlap, so
  the window that holds a message is its predecessor in this set or, when the window begins before its first message,
  its successor.
- `held`, a set of places: the accepted messages. A neighbour of the same type inside the window is a conflict, the
  same place a duplicate. Both are asked only about a message that is not later than the `newest` of its type.
- `occupied`, a set of positions with an accepted message: where a window splits, its last message before the split.
- `heavy`, octets by position: what a window weighs is their sum from its first position to its last. They are not
  needed where all messages of a stream together fit a batch.

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
FOREVER = np.iinfo(np.int64).max
NONE = -1


@compiled
def decide(  # type: ignore[no-untyped-def]
    begin, new_begin, event_time, processing_time, octets, position, list_of, place,
    position_begin, time_at, place_begin, position_at, open_begin, open_sizes, open_start, open_end, open_by, sweep,
    window, max_delay, max_leap, max_octets, start_at_arrival,
    fate, off_by, start, end, first, last, weight, opened_by, closed_at, changed, window_at,
):  # fmt: skip
    """Decide every new message and return how many windows there are; the arrays of the last line are filled.

    Shapes: see `Columns` for the first two lines, slots, positions, lists and places are counted over all streams;
    `sweep` is the last `now` of each stream. Times in microseconds. Window k < number of open windows is the k-th open
    window given.
    """
    set_begin = np.zeros(LEVELS + 1, np.int64)
    held_begin = np.zeros(LEVELS + 1, np.int64)
    for level in range(LEVELS):
        set_begin[level + 1] = set_begin[level] + (time_at.size >> (6 * level + 6)) + 1
        held_begin[level + 1] = held_begin[level] + (position_at.size >> (6 * level + 6)) + 1
    windows = np.zeros(set_begin[LEVELS], np.uint64)
    occupied = np.zeros(set_begin[LEVELS], np.uint64)
    held = np.zeros(held_begin[LEVELS], np.uint64)
    newest = np.full(place_begin.size - 1, NEVER)
    heavy = np.zeros(time_at.size if max_octets > 0 else 0, np.int64)
    weighed = np.empty(start.size, np.bool_)

    count = open_start.size
    for stream in range(begin.size - 1):
        base, beyond = position_begin[stream], position_begin[stream + 1]
        weigh = False
        if max_octets > 0:
            total = 0
            for slot in range(begin[stream], begin[stream + 1]):
                total += octets[slot]
            weigh = total > max_octets

        head, slot = NONE, begin[stream]
        for w in range(open_begin[stream], open_begin[stream + 1]):
            start[w], end[w], opened_by[w] = open_start[w], open_end[w], open_by[w]
            weight[w], weighed[w] = 0, True
            first[w] = position[slot]
            for _ in range(open_sizes[w]):
                p = position[slot]
                first[w], last[w] = min(first[w], p), p
                insert(occupied, set_begin, p)
                insert(held, held_begin, place[slot])
                newest[list_of[slot]] = max(newest[list_of[slot]], event_time[slot])
                if weigh:
                    weight[w] += octets[slot]
                    heavy[p] += octets[slot]
                slot += 1
            closed_at[w], changed[w] = NEVER, False
            window_at[first[w]] = w
            insert(windows, set_begin, first[w])
            if head == NONE:
                head = w

        b, left, right = NONE, NONE, NONE
        b_start, b_end = 0, 0
        due = FOREVER if head == NONE else end[head] + max_delay
        for slot in range(new_begin[stream], begin[stream + 1] + 1):
            at_end = slot == begin[stream + 1]
            now = sweep[stream] if at_end else processing_time[slot]

            while now >= due:
                closed_at[head], changed[head] = due, True
                remove(windows, set_begin, first[head])
                following = successor(windows, set_begin, first[head] + 1, beyond)
                head = window_at[following] if following >= 0 else NONE
                due = end[head] + max_delay if following >= 0 else FOREVER
            if at_end:
                break

            t = event_time[slot]
            if t < now - max_delay:
                fate[slot], off_by[slot] = TOO_OLD, now - max_delay - t
                continue
            if t > now + max_leap:
                fate[slot], off_by[slot] = TOO_FUTURISTIC, t - now - max_leap
                continue
            p, q, one = position[slot], place[slot], list_of[slot]

            # the active window that holds t: the last one used (t is not in one that closed), else the neighbours of p
            if t < b_start or t >= b_end:
                b, right = NONE, NONE
                before = predecessor(windows, set_begin, p)
                left = window_at[before] if before >= base else NONE
                if left != NONE and t < end[left]:
                    b = left
                else:
                    after = successor(windows, set_begin, p + 1, beyond)
                    right = window_at[after] if after >= 0 else NONE
                    if right != NONE and t >= start[right]:
                        b = right

            split_at = NONE
            if b == NONE:
                begins = now - max_delay if start_at_arrival else t
                if left != NONE:
                    begins = max(begins, end[left])
                if t >= begins + window:
                    begins = t
                b = count
                count += 1
                start[b], end[b] = begins, begins + window
                if right != NONE:
                    end[b] = min(end[b], start[right])
                first[b], last[b], weight[b], weighed[b] = p, p, 0, True
                opened_by[b], closed_at[b] = BY_MESSAGE, NEVER
                window_at[p] = b
                insert(windows, set_begin, p)
                if head == NONE or p < first[head]:
                    head = b
                due = end[head] + max_delay
                b_start, b_end = start[b], end[b]
            else:
                b_start, b_end = start[b], end[b]
                if t > newest[one]:
                    if newest[one] >= b_start:
                        split_at = p
                else:
                    if contains(held, held_begin, q):
                        fate[slot] = DUPLICATE
                        continue
                    other = predecessor(held, held_begin, q)
                    if other >= place_begin[one] and time_at[position_at[other]] >= b_start:
                        split_at = p
                    else:
                        other = successor(held, held_begin, q + 1, place_begin[one + 1])
                        if other >= 0 and time_at[position_at[other]] < b_end:
                            split_at = position_at[other]

            insert(occupied, set_begin, p)
            insert(held, held_begin, q)
            newest[one] = max(newest[one], t)
            changed[b] = True
            last[b] = max(last[b], p)
            if p < first[b]:
                remove(windows, set_begin, first[b])
                first[b] = p
                window_at[p] = b
                insert(windows, set_begin, p)
            if weigh:
                heavy[p] += octets[slot]
                weight[b] += octets[slot]
            elif split_at == NONE:
                continue

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
                        split_at = successor(occupied, set_begin, p + 1, beyond)
                if split_at == NONE:
                    continue
                after = successor(windows, set_begin, first[b] + 1, beyond)
                half = count
                count += 1
                start[half] = time_at[split_at]
                end[half] = max(start[half] + window, end[b])
                if after >= 0:
                    end[half] = min(end[half], start[window_at[after]])
                end[b] = start[half]
                first[half], last[half] = split_at, last[b]
                last[b] = predecessor(occupied, set_begin, split_at - 1)
                weight[half], weighed[half], weighed[b] = weight[b], False, False
                opened_by[half], closed_at[half], changed[half] = cause, NEVER, True
                window_at[split_at] = half
                insert(windows, set_begin, split_at)
                if b == head:
                    due = end[b] + max_delay
                if p >= split_at:
                    b = half
                b_start, b_end = start[b], end[b]
    return count


@compiled
def emit(  # type: ignore[no-untyped-def]
    ranked, row_of, position, octets, fate, window_at, first, closed_at, max_octets,
    members, batch_begin, batch_window, batch_part, batch_octets, batch_oversize,
):  # fmt: skip
    """List the rows of the accepted slots batch by batch and return how many batches there are.

    `ranked` holds all slots by (stream, event time, type). A window begins where its first position does; a closed
    batch above the maximum becomes numbered parts, each within it. `members` gets the rows, `batch_begin` where the
    rows of each batch begin (and at the end where the last one ends).
    """
    count, member, current, previous = 0, 0, NONE, NONE
    for index in range(ranked.size):
        slot = ranked[index]
        if fate[slot] != ACCEPTED:
            continue
        w = window_at[position[slot]]
        if w != NONE and w != current and first[w] == position[slot]:
            current = w
        starts = current != previous
        overflows = (
            not starts
            and max_octets > 0
            and closed_at[current] != NEVER
            and batch_octets[count - 1] + octets[slot] > max_octets
        )
        if starts or overflows:
            batch_begin[count] = member
            batch_window[count] = current
            batch_part[count] = 0 if starts else batch_part[count - 1] + 1
            batch_octets[count] = 0
            batch_oversize[count] = False
            previous = current
            count += 1
        members[member] = row_of[slot]
        member += 1
        batch_octets[count - 1] += octets[slot]
        if max_octets > 0 and octets[slot] > max_octets:
            batch_oversize[count - 1] = True
    batch_begin[count] = member
    return count

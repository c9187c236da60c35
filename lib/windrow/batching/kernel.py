"""The kernel: decide each message, and find the windows of each stream, in one compiled function.

Streams are independent, so the kernel processes one after another. It never stores which batch a message is in.
It works on numbers that were computed beforehand: *positions* number the distinct event times of a stream, *places*
number its (type, event time) pairs. Four structures over these numbers answer every question that the rules ask:

- `windows`, a set of positions: the earliest accepted time of each active window. Active windows never overlap. So only
  two windows can hold a time: the last one whose first message is not later, and the next one, because a window may
  start before its first message.
- `accepted`, a set of places: the accepted messages. If the place of a message is in the set, it is a duplicate. If a
  neighbour of the same type is inside the window, there is a conflict, unless repeats are kept. The kernel looks this
  up only for messages that are not later than the `newest` of their type.
- `occupied`, a set of positions: the event times of accepted messages. It tells the last message before a split.
- `heavy`, bytes by position. The weight of a window is the sum from its first position to its last. Weights are not
  needed if one batch can hold all messages of a stream.

A split changes the end of one window and adds another; no message moves. Every step except weighing costs at most log64
of the number of rows, however large the batches are. A split gives both halves the weight of the whole, an upper bound.
A half is weighed only if this bound exceeds the limit, and only once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from windrow.batching.bitset import contains, insert, levels_of, predecessor, remove, successor
from windrow.batching.numbering import SlotNumbering
from windrow.columnar.compiled import Flags, Ints, Numbers, Words, compiled_in_place

ACCEPTED, TOO_OLD, TOO_FAR_AHEAD, DUPLICATE = 0, 1, 2, 3
BY_MESSAGE, BY_CONFLICT, BY_SIZE = 0, 1, 2
NEVER = np.iinfo(np.int64).min
FOREVER = np.iinfo(np.int64).max
NONE = -1


class Limits(NamedTuple):
    """The rules; durations in microseconds."""

    window: int
    max_delay: int
    max_lead: int
    max_bytes: int
    start_at_arrival: bool
    aligned: bool
    window_offset: int
    keep_repeats: bool
    split_at_midpoint: bool


class Windows(NamedTuple):
    """The windows, those of the open batches first. `at` has for each position the window whose first message is there.

    `weight` (bytes) is exact if `weighed`, else an upper bound.
    """

    start: Ints
    end: Ints
    first: Ints  # the position of its first message
    last: Ints  # the position of its last message
    weight: Ints
    weighed: Flags
    open_reason: Ints
    closed_at: Ints
    changed: Flags
    at: Numbers

    @classmethod
    def allocate(cls, windows: int, positions: int) -> Windows:
        """Allocate arrays for this many windows and positions."""
        start, end, first, last, weight, open_reason, closed_at = np.empty((7, windows), np.int64)
        weighed, changed = np.empty((2, windows), np.bool_)
        at = np.full(positions, NONE, np.int32)
        return cls(start, end, first, last, weight, weighed, open_reason, closed_at, changed, at)


class StreamIndex(NamedTuple):
    """The structures that answer the rules' questions, see above."""

    windows: Words
    occupied: Words
    levels: Ints  # where the levels of these two begin
    accepted: Words
    accepted_levels: Ints
    newest: Ints  # per list
    heavy: Ints  # per position

    @classmethod
    def empty(cls, numbers: SlotNumbering, weighed: bool) -> StreamIndex:
        """Return empty sets for all positions and places; `weighed` says whether bytes are needed."""
        positions, places = numbers.time_at.size, numbers.position_at.size
        levels, accepted_levels = levels_of(positions), levels_of(places)
        return cls(
            windows=np.zeros(levels[-1], np.uint64),
            occupied=np.zeros(levels[-1], np.uint64),
            levels=levels,
            accepted=np.zeros(accepted_levels[-1], np.uint64),
            accepted_levels=accepted_levels,
            newest=np.full(numbers.place_begin.size - 1, NEVER),
            heavy=np.zeros(positions if weighed else 0, np.int64),
        )


class EmittedBatches(NamedTuple):
    """The accepted rows, batch by batch, and the window, part, bytes and oversize flag of each batch."""

    members: Numbers  # rows
    start: Ints  # per batch, and at the end: its first row among `members`
    window: Ints
    part: Ints
    byte_count: Ints
    oversize: Flags

    @classmethod
    def allocate(cls, slots: int) -> EmittedBatches:
        """Allocate arrays for as many batches as there are slots."""
        window, part, byte_count = np.empty((3, slots), np.int64)
        members, start = np.empty(slots, np.int32), np.empty(slots + 1, np.int64)
        return cls(members, start, window, part, byte_count, np.empty(slots, np.bool_))


@compiled_in_place
def decide(columns, sizes, limits, sweep, cut, sets, windows, fate):  # type: ignore[no-untyped-def]
    """Decide every new message, and return how many windows there are.

    `sizes` has the number of messages of each open batch, `sweep` the clock of each stream after all messages, `cut`
    the time up to which it may have windows that do not lie on the calendar. The call fills `windows` and `fate` (per
    slot). Before the call, `windows` has start, end and cause of the open batches, `sets` is empty, and every fate is
    ACCEPTED.
    """
    numbers, count = columns.numbers, sizes.size
    for stream in range(columns.start.size - 1):
        low, high = numbers.position_start[stream], numbers.position_start[stream + 1]
        weigh = _may_exceed(limits, columns.byte_count, columns.start[stream], columns.start[stream + 1])
        slot = columns.start[stream]
        for w in range(columns.open_start[stream], columns.open_start[stream + 1]):
            slot = _reopen(windows, sets, columns, sizes, w, slot, weigh)
        head = columns.open_start[stream] if slot > columns.start[stream] else NONE  # the next window to close
        due = windows.end[head] + limits.max_delay if head != NONE else FOREVER

        b, begins, ends = NONE, 0, 0  # the window of the message before; once closed, it ends before all later messages
        for slot in range(columns.new_start[stream], columns.start[stream + 1]):
            now, t = columns.processing_time[slot], columns.event_time[slot]
            while now >= due:
                head, due = _close(windows, sets, limits, head, due, high)
            if t < now - limits.max_delay:
                fate[slot] = TOO_OLD
                continue
            if t > now + limits.max_lead:
                fate[slot] = TOO_FAR_AHEAD
                continue
            p, q, list_number = numbers.position[slot], numbers.place[slot], numbers.list_of[slot]
            left, right = NONE, NONE
            if t < begins or t >= ends:
                b, left, right = _around(windows, sets, t, p, low, high)
            split_at = NONE
            if b == NONE:
                b = count
                count += 1
                _open(windows, sets, limits, b, now, t, p, left, right, cut[stream])
                if head == NONE or p < windows.first[head]:
                    head = b
                due = windows.end[head] + limits.max_delay
            else:
                duplicate = t <= sets.newest[list_number] and contains(sets.accepted, sets.accepted_levels, q)
                if not duplicate and not limits.keep_repeats:
                    split_at = _conflict(sets, numbers, t, p, q, list_number, windows.start[b], windows.end[b])
                if duplicate:
                    begins, ends = windows.start[b], windows.end[b]
                    fate[slot] = DUPLICATE
                    continue
            _accept(windows, sets, b, t, p, q, list_number)
            if weigh:
                sets.heavy[p] += columns.byte_count[slot]
                windows.weight[b] += columns.byte_count[slot]
            lead = 0
            if limits.split_at_midpoint and split_at != NONE:
                start = _midpoint(sets, numbers, limits, now, t, p, q, split_at)
                split_at = _first_from(sets, numbers.time_at, start, windows.first[b], split_at, high)
                lead = numbers.time_at[split_at] - start
            if weigh or split_at != NONE:
                b, count = _split(windows, sets, numbers.time_at, limits, b, count, p, split_at, lead, weigh, high)
                due = windows.end[head] + limits.max_delay
            begins, ends = windows.start[b], windows.end[b]

        while sweep[stream] >= due:
            head, due = _close(windows, sets, limits, head, due, high)
    return count


@njit(inline="always")
def _may_exceed(limits, byte_count, start, end):  # type: ignore[no-untyped-def]
    """Tell whether all messages of a stream together are too large for one batch. If not, no batch can be too large."""
    total = 0
    if limits.max_bytes > 0:
        for slot in range(start, end):
            total += byte_count[slot]
    return limits.max_bytes > 0 and total > limits.max_bytes


@njit(inline="always")
def _reopen(windows, sets, columns, sizes, w, slot, weigh):  # type: ignore[no-untyped-def]
    """Complete the window of open batch `w`. Its messages begin at `slot`; return the slot after its last one."""
    numbers = columns.numbers
    windows.weight[w], windows.weighed[w] = 0, True
    first, last = numbers.position[slot], numbers.position[slot]
    after = slot + sizes[w]
    for message_slot in range(slot, after):
        p, kind = numbers.position[message_slot], numbers.list_of[message_slot]
        first, last = min(first, p), max(last, p)
        insert(sets.occupied, sets.levels, p)
        insert(sets.accepted, sets.accepted_levels, numbers.place[message_slot])
        sets.newest[kind] = max(sets.newest[kind], columns.event_time[message_slot])
        if weigh:
            windows.weight[w] += columns.byte_count[message_slot]
            sets.heavy[p] += columns.byte_count[message_slot]
    windows.first[w], windows.last[w] = first, last
    windows.closed_at[w], windows.changed[w] = NEVER, False
    windows.at[first] = w
    insert(sets.windows, sets.levels, first)
    return after


@njit(inline="always")
def _close(windows, sets, limits, head, due, high):  # type: ignore[no-untyped-def]
    """Close window `head` at its timeout; return the next window and its timeout."""
    windows.closed_at[head], windows.changed[head] = due, True
    remove(sets.windows, sets.levels, windows.first[head])
    following = successor(sets.windows, sets.levels, windows.first[head] + 1, high)
    after = windows.at[following] if following >= 0 else NONE
    return after, (windows.end[after] + limits.max_delay if following >= 0 else FOREVER)


@njit(inline="always")
def _around(windows, sets, t, p, low, high):  # type: ignore[no-untyped-def]
    """Return the active window that holds t, the one before t and the one after t; NONE where there is none.

    The one after t is looked up only if the one before does not hold t.
    """
    b, right = NONE, NONE
    before = predecessor(sets.windows, sets.levels, p)
    left = windows.at[before] if before >= low else NONE
    if left != NONE and t < windows.end[left]:
        b = left
    else:
        after = successor(sets.windows, sets.levels, p + 1, high)
        right = windows.at[after] if after >= 0 else NONE
        if right != NONE and t >= windows.start[right]:
            b = right
    return b, left, right


@njit(inline="always")
def _open(windows, sets, limits, b, now, t, p, left, right, cut):  # type: ignore[no-untyped-def]
    """Open window b for a message at t, between the windows `left` and `right` (or NONE)."""
    if limits.aligned:
        start = t - (t - limits.window_offset) % limits.window
        end = start + limits.window
        start = max(start, min(cut, now - limits.max_delay))
        if left != NONE:
            start = max(start, windows.end[left])
    else:
        start = now - limits.max_delay if limits.start_at_arrival else t
        if left != NONE:
            start = max(start, windows.end[left])
        if t >= start + limits.window:
            start = t
        end = start + limits.window
    if right != NONE:
        end = min(end, windows.start[right])
    windows.start[b], windows.end[b] = start, end
    windows.first[b], windows.last[b], windows.weight[b], windows.weighed[b] = p, p, 0, True
    windows.open_reason[b], windows.closed_at[b] = BY_MESSAGE, NEVER
    windows.at[p] = b
    insert(sets.windows, sets.levels, p)


@njit(inline="always")
def _conflict(sets, numbers, t, p, q, list_number, begins, ends):  # type: ignore[no-untyped-def]
    """Return the position of the later of two messages of one type in a window, or NONE if nothing conflicts.

    A message conflicts with the last one before it, otherwise with the first one after it.
    """
    later = NONE
    if t > sets.newest[list_number]:
        if sets.newest[list_number] >= begins:
            later = p
    else:
        other = predecessor(sets.accepted, sets.accepted_levels, q)
        if other >= numbers.place_begin[list_number] and numbers.time_at[numbers.position_at[other]] >= begins:
            later = p
        else:
            other = successor(sets.accepted, sets.accepted_levels, q + 1, numbers.place_begin[list_number + 1])
            if other >= 0 and numbers.time_at[numbers.position_at[other]] < ends:
                later = numbers.position_at[other]
    return later


@njit(inline="always")
def _midpoint(sets, numbers, limits, now, t, p, q, later):  # type: ignore[no-untyped-def]
    """Return the time halfway between two conflicting messages, but no time that is too old."""
    earliest, latest = t, numbers.time_at[later]
    if later == p:
        earliest = numbers.time_at[numbers.position_at[predecessor(sets.accepted, sets.accepted_levels, q - 1)]]
    return max(latest - (latest - earliest) // 2, now - limits.max_delay)


@njit(inline="always")
def _first_from(sets, time_at, start, low, last, high):  # type: ignore[no-untyped-def]
    """Return the position of the first accepted message at `start` or later, between positions low and last."""
    while low < last:
        middle = (low + last) >> 1
        if time_at[middle] < start:
            low = middle + 1
        else:
            last = middle
    return successor(sets.occupied, sets.levels, low, high)


@njit(inline="always")
def _accept(windows, sets, b, t, p, q, list_number):  # type: ignore[no-untyped-def]
    """Add a message to window b."""
    insert(sets.occupied, sets.levels, p)
    insert(sets.accepted, sets.accepted_levels, q)
    sets.newest[list_number] = max(sets.newest[list_number], t)
    windows.changed[b] = True
    windows.last[b] = max(windows.last[b], p)
    if p < windows.first[b]:
        remove(sets.windows, sets.levels, windows.first[b])
        windows.first[b] = p
        windows.at[p] = b
        insert(sets.windows, sets.levels, p)


@njit(inline="always")
def _split(windows, sets, time_at, limits, b, count, p, split_at, lead, weigh, high):  # type: ignore[no-untyped-def]
    """Split window b after it got a message at p: first for a conflict, then if it is too large.

    A conflict moves the messages from position `split_at` on to a window that begins `lead` microseconds before it. A
    window that is too large is split before the message first, then after it. Return the window that holds the message,
    and how many windows there are.
    """
    cause = BY_CONFLICT
    for attempt in range(3):
        if attempt > 0:
            cause, split_at, lead = BY_SIZE, NONE, 0
            if not weigh or windows.weight[b] <= limits.max_bytes:
                break
            if not windows.weighed[b]:
                weight = 0
                for at in range(windows.first[b], windows.last[b] + 1):
                    weight += sets.heavy[at]
                windows.weight[b] = weight
                windows.weighed[b] = True
                if windows.weight[b] <= limits.max_bytes:
                    break
            if attempt == 1 and windows.first[b] < p:
                split_at = p
            elif attempt == 2 and windows.last[b] > p:
                split_at = successor(sets.occupied, sets.levels, p + 1, high)
        if split_at == NONE:
            continue
        _halve(windows, sets, limits, b, count, split_at, time_at[split_at] - lead, cause, high)
        if p >= split_at:
            b = count
        count += 1
    return b, count


@njit(inline="always")
def _halve(windows, sets, limits, b, half, split_at, start, cause, high):  # type: ignore[no-untyped-def]
    """Move the part of window b from a position on to a new window. Both keep the weight of the whole as a bound."""
    after = successor(sets.windows, sets.levels, windows.first[b] + 1, high)
    end = windows.end[b] if limits.aligned else max(start + limits.window, windows.end[b])
    if after >= 0:
        end = min(end, windows.start[windows.at[after]])
    windows.start[half], windows.end[half] = start, end
    windows.end[b] = start
    windows.first[half], windows.last[half] = split_at, windows.last[b]
    windows.last[b] = predecessor(sets.occupied, sets.levels, split_at - 1)
    windows.weight[half], windows.weighed[half], windows.weighed[b] = windows.weight[b], False, False
    windows.open_reason[half], windows.closed_at[half], windows.changed[half] = cause, NEVER, True
    windows.at[split_at] = half
    insert(sets.windows, sets.levels, split_at)


@compiled_in_place
def emit(columns, windows, fate, max_bytes, emitted):  # type: ignore[no-untyped-def]
    """List the accepted rows batch by batch, and return how many batches there are.

    A new batch begins with the first message of a window. A closed batch that is larger than the maximum becomes
    numbered parts, each within the maximum unless it is a single larger message.
    """
    count, member, current, previous = 0, 0, NONE, NONE
    for index in range(columns.ranked.size):
        slot = np.uint64(columns.ranked[index])
        if fate[slot] != ACCEPTED:
            continue
        p, weight = columns.numbers.position[slot], columns.byte_count[slot]
        w = windows.at[np.uint64(p)]
        if w != NONE and w != current and windows.first[w] == p:
            current = w
        starts = current != previous
        overflows = (
            not starts
            and max_bytes > 0
            and windows.closed_at[current] != NEVER
            and emitted.byte_count[count - 1] + weight > max_bytes
        )
        if starts or overflows:
            emitted.start[count] = member
            emitted.window[count] = current
            emitted.part[count] = 0 if starts else emitted.part[count - 1] + 1
            emitted.byte_count[count] = 0
            emitted.oversize[count] = False
            previous = current
            count += 1
        emitted.members[member] = columns.row_of[slot]
        member += 1
        emitted.byte_count[count - 1] += weight
        if max_bytes > 0 and weight > max_bytes:
            emitted.oversize[count - 1] = True
    emitted.start[count] = member
    return count

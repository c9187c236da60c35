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
- `heavy`, bytes by position: what a window weighs is their sum from its first position to its last. They are not
  needed where all messages of a stream together fit a batch.

A split changes an end and adds a window; nothing moves. Every step costs log64 of the stream's rows at most, whatever
the batches hold, but for weighing: a split leaves both halves with the weight of the whole, which they cannot exceed,
and only when that is too much for a batch is a half weighed, once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from windrow.batching.bitset import contains, insert, levels_of, predecessor, remove, successor
from windrow.columnar.compiled import compiled_in_place

ACCEPTED, TOO_OLD, TOO_FUTURISTIC, DUPLICATE = 0, 1, 2, 3
BY_MESSAGE, BY_CONFLICT, BY_SIZE = 0, 1, 2
NEVER = np.iinfo(np.int64).min
FOREVER = np.iinfo(np.int64).max
NONE = -1

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


class Streams(NamedTuple):
    """Where what belongs to each stream begins; but for `new_begin` there is one entry more, for the end of all."""

    begin: Ints  # its slots
    new_begin: Ints  # those of its new messages
    position_begin: Ints  # its positions
    open_begin: Ints  # its open batches
    sweep: Ints  # its clock after all messages


class Slots(NamedTuple):
    """The messages as they are taken, see `Columns`."""

    event_time: Ints
    processing_time: Ints
    byte_count: Ints
    position: Numbers
    list_of: Numbers
    place: Numbers


class Orders(NamedTuple):
    """What positions, lists and places stand for, see `numbering`."""

    time_at: Ints  # per position
    place_begin: Ints  # per list, and at the end
    position_at: Numbers  # per place


class Given(NamedTuple):
    """The open batches: how many messages each has, and its window."""

    sizes: Ints
    start: Ints
    end: Ints
    opened_by: Ints


class Limits(NamedTuple):
    """The rules; durations in microseconds."""

    window: int
    max_delay: int
    max_leap: int
    max_bytes: int
    start_at_arrival: bool


class Windows(NamedTuple):
    """The windows, those of the open batches first, and per position the window that begins there."""

    start: Ints
    end: Ints
    first: Ints  # positions of the first and the last message
    last: Ints
    weight: Ints  # bytes, or more where not `weighed`
    weighed: Bools
    opened_by: Ints
    closed_at: Ints
    changed: Bools
    at: Numbers


class Sets(NamedTuple):
    """What answers the questions of the rules, see above."""

    windows: Words
    occupied: Words
    levels: Ints  # where the levels of the two begin
    held: Words
    held_levels: Ints
    newest: Ints  # per list
    heavy: Ints  # per position

    @classmethod
    def empty(cls, orders: Orders, weighed: bool) -> Sets:
        """Return sets for all positions and places, with nothing in them; `weighed` says whether bytes are needed."""
        levels, held_levels = levels_of(orders.time_at.size), levels_of(orders.position_at.size)
        return cls(
            windows=np.zeros(levels[-1], np.uint64),
            occupied=np.zeros(levels[-1], np.uint64),
            levels=levels,
            held=np.zeros(held_levels[-1], np.uint64),
            held_levels=held_levels,
            newest=np.full(orders.place_begin.size - 1, NEVER),
            heavy=np.zeros(orders.time_at.size if weighed else 0, np.int64),
        )


@compiled_in_place
def decide(streams, slots, orders, given, limits, sets, windows, fate):  # type: ignore[no-untyped-def]
    """Decide every new message and return how many windows there are; `windows` and `fate` are filled.

    Slots, positions, lists and places are counted over all streams. `sets` are empty, and `fate` (per slot) is ACCEPTED
    before.
    """
    count = given.start.size
    for stream in range(streams.begin.size - 1):
        low, high = streams.position_begin[stream], streams.position_begin[stream + 1]
        weigh = _may_exceed(limits, slots, streams.begin[stream], streams.begin[stream + 1])
        slot = streams.begin[stream]
        for w in range(streams.open_begin[stream], streams.open_begin[stream + 1]):
            slot = _reopen(windows, sets, slots, given, w, slot, weigh)
        head = streams.open_begin[stream] if slot > streams.begin[stream] else NONE  # the first window to close
        due = windows.end[head] + limits.max_delay if head != NONE else FOREVER

        b, begins, ends = NONE, 0, 0  # the window used last; there is no time in it that closed
        for slot in range(streams.new_begin[stream], streams.begin[stream + 1]):
            now, t = slots.processing_time[slot], slots.event_time[slot]
            while now >= due:
                head, due = _close(windows, sets, limits, head, due, high)
            if t < now - limits.max_delay:
                fate[slot] = TOO_OLD
                continue
            if t > now + limits.max_leap:
                fate[slot] = TOO_FUTURISTIC
                continue
            p, q, one = slots.position[slot], slots.place[slot], slots.list_of[slot]
            left, right = NONE, NONE
            if t < begins or t >= ends:
                b, left, right = _around(windows, sets, t, p, low, high)
            split_at = NONE
            if b == NONE:
                b = count
                count += 1
                _open(windows, sets, limits, b, now, t, p, left, right)
                if head == NONE or p < windows.first[head]:
                    head = b
                due = windows.end[head] + limits.max_delay
            else:
                duplicate, split_at = _beside(sets, orders, t, p, q, one, windows.start[b], windows.end[b])
                if duplicate:
                    begins, ends = windows.start[b], windows.end[b]
                    fate[slot] = DUPLICATE
                    continue
            _accept(windows, sets, b, t, p, q, one)
            if weigh:
                sets.heavy[p] += slots.byte_count[slot]
                windows.weight[b] += slots.byte_count[slot]
            if weigh or split_at != NONE:
                b, count = _split(windows, sets, orders, limits, b, count, p, split_at, weigh, high)
                due = windows.end[head] + limits.max_delay
            begins, ends = windows.start[b], windows.end[b]

        while streams.sweep[stream] >= due:
            head, due = _close(windows, sets, limits, head, due, high)
    return count


@njit(inline="always")
def _may_exceed(limits, slots, begin, end):  # type: ignore[no-untyped-def]
    """Tell whether the messages of a stream can be too much for a batch: whether they are, together."""
    total = 0
    if limits.max_bytes > 0:
        for slot in range(begin, end):
            total += slots.byte_count[slot]
    return limits.max_bytes > 0 and total > limits.max_bytes


@njit(inline="always")
def _reopen(windows, sets, slots, given, w, slot, weigh):  # type: ignore[no-untyped-def]
    """Make the w-th open batch, whose messages begin at `slot`, a window, and return where those of the next begin."""
    windows.start[w], windows.end[w], windows.opened_by[w] = given.start[w], given.end[w], given.opened_by[w]
    windows.weight[w], windows.weighed[w] = 0, True
    first, last = slots.position[slot], slots.position[slot]
    after = slot + given.sizes[w]
    for one in range(slot, after):
        p, kind = slots.position[one], slots.list_of[one]
        first, last = min(first, p), max(last, p)
        insert(sets.occupied, sets.levels, p)
        insert(sets.held, sets.held_levels, slots.place[one])
        sets.newest[kind] = max(sets.newest[kind], slots.event_time[one])
        if weigh:
            windows.weight[w] += slots.byte_count[one]
            sets.heavy[p] += slots.byte_count[one]
    windows.first[w], windows.last[w] = first, last
    windows.closed_at[w], windows.changed[w] = NEVER, False
    windows.at[first] = w
    insert(sets.windows, sets.levels, first)
    return after


@njit(inline="always")
def _close(windows, sets, limits, head, due, high):  # type: ignore[no-untyped-def]
    """Close the first window at its timeout, and return the next one and when that is due."""
    windows.closed_at[head], windows.changed[head] = due, True
    remove(sets.windows, sets.levels, windows.first[head])
    following = successor(sets.windows, sets.levels, windows.first[head] + 1, high)
    after = windows.at[following] if following >= 0 else NONE
    return after, (windows.end[after] + limits.max_delay if following >= 0 else FOREVER)


@njit(inline="always")
def _around(windows, sets, t, p, low, high):  # type: ignore[no-untyped-def]
    """Return the active window that holds t, or else the ones before and after it; NONE for what there is not."""
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
def _open(windows, sets, limits, b, now, t, p, left, right):  # type: ignore[no-untyped-def]
    """Open window b between two others for a message at t."""
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
    windows.opened_by[b], windows.closed_at[b] = BY_MESSAGE, NEVER
    windows.at[p] = b
    insert(sets.windows, sets.levels, p)


@njit(inline="always")
def _beside(sets, orders, t, p, q, one, begins, ends):  # type: ignore[no-untyped-def]
    """Tell whether a window has the message already, and where it splits if it has another of the type, or NONE."""
    duplicate, split_at = False, NONE
    if t > sets.newest[one]:
        if sets.newest[one] >= begins:
            split_at = p
    elif contains(sets.held, sets.held_levels, q):
        duplicate = True
    else:
        other = predecessor(sets.held, sets.held_levels, q)
        if other >= orders.place_begin[one] and orders.time_at[orders.position_at[other]] >= begins:
            split_at = p
        else:
            other = successor(sets.held, sets.held_levels, q + 1, orders.place_begin[one + 1])
            if other >= 0 and orders.time_at[orders.position_at[other]] < ends:
                split_at = orders.position_at[other]
    return duplicate, split_at


@njit(inline="always")
def _accept(windows, sets, b, t, p, q, one):  # type: ignore[no-untyped-def]
    """Put a message into window b."""
    insert(sets.occupied, sets.levels, p)
    insert(sets.held, sets.held_levels, q)
    sets.newest[one] = max(sets.newest[one], t)
    windows.changed[b] = True
    windows.last[b] = max(windows.last[b], p)
    if p < windows.first[b]:
        remove(sets.windows, sets.levels, windows.first[b])
        windows.first[b] = p
        windows.at[p] = b
        insert(sets.windows, sets.levels, p)


@njit(inline="always")
def _split(windows, sets, orders, limits, b, count, p, split_at, weigh, high):  # type: ignore[no-untyped-def]
    """Split window b, which got a message at p: for a conflict, then for its size before the message and after it.

    Return the window that holds the message, and how many windows there are.
    """
    cause = BY_CONFLICT
    for attempt in range(3):
        if attempt > 0:
            cause, split_at = BY_SIZE, NONE
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
        _halve(windows, sets, orders, limits, b, count, split_at, cause, high)
        if p >= split_at:
            b = count
        count += 1
    return b, count


@njit(inline="always")
def _halve(windows, sets, orders, limits, b, half, split_at, cause, high):  # type: ignore[no-untyped-def]
    """Give what window b has from a position on to a new one. Both keep the weight of the whole, as a bound."""
    after = successor(sets.windows, sets.levels, windows.first[b] + 1, high)
    start = orders.time_at[split_at]
    end = max(start + limits.window, windows.end[b])
    if after >= 0:
        end = min(end, windows.start[windows.at[after]])
    windows.start[half], windows.end[half] = start, end
    windows.end[b] = start
    windows.first[half], windows.last[half] = split_at, windows.last[b]
    windows.last[b] = predecessor(sets.occupied, sets.levels, split_at - 1)
    windows.weight[half], windows.weighed[half], windows.weighed[b] = windows.weight[b], False, False
    windows.opened_by[half], windows.closed_at[half], windows.changed[half] = cause, NEVER, True
    windows.at[split_at] = half
    insert(sets.windows, sets.levels, split_at)


@compiled_in_place
def emit(  # type: ignore[no-untyped-def]
    ranked, row_of, position, byte_count, fate, window_at, first, closed_at, max_bytes,
    members, batch_begin, batch_window, batch_part, batch_bytes, batch_oversize,
):  # fmt: skip
    """List the rows of the accepted slots batch by batch and return how many batches there are.

    `ranked` holds all slots by (stream, event time, type). A window begins where its first position does; a closed
    batch above the maximum becomes numbered parts, each within it. `members` gets the rows, `batch_begin` where the
    rows of each batch begin (and at the end where the last one ends).
    """
    count, member, current, previous = 0, 0, NONE, NONE
    for index in range(ranked.size):
        slot = np.uint64(ranked[index])
        if fate[slot] != ACCEPTED:
            continue
        w = window_at[np.uint64(position[slot])]
        if w != NONE and w != current and first[w] == position[slot]:
            current = w
        starts = current != previous
        overflows = (
            not starts
            and max_bytes > 0
            and closed_at[current] != NEVER
            and batch_bytes[count - 1] + byte_count[slot] > max_bytes
        )
        if starts or overflows:
            batch_begin[count] = member
            batch_window[count] = current
            batch_part[count] = 0 if starts else batch_part[count - 1] + 1
            batch_bytes[count] = 0
            batch_oversize[count] = False
            previous = current
            count += 1
        members[member] = row_of[slot]
        member += 1
        batch_bytes[count - 1] += byte_count[slot]
        if max_bytes > 0 and byte_count[slot] > max_bytes:
            batch_oversize[count - 1] = True
    batch_begin[count] = member
    return count

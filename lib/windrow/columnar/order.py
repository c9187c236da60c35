"""Group rows by a small id, and sort and number rows inside the groups; linear for sorted data.

numpy allocates the long arrays, because it asks the system for large pages, and compiled code fills them. Compiled code
would get memory in pages of 4 KiB, and getting them takes longer than filling them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.columnar.compiled import Ints, Numbers, compile_lazily, compiled_in_place, inline


def group_by_id(ids: npt.NDArray[np.integer], size: int) -> tuple[Numbers, Ints]:
    """Return the rows grouped by id, stable, and where each of the `size` groups begins (size + 1)."""
    rows, start = np.empty(ids.size, np.int32), np.zeros(size + 1, np.int64)
    _group(ids, size, rows, start, np.empty_like(start))
    return rows, start


@compiled_in_place
def _group(ids, size, rows, start, slots):  # type: ignore[no-untyped-def]
    for row in range(ids.size):
        start[ids[row] + 1] += 1
    for index in range(size):
        start[index + 1] += start[index]
    for index in range(size):
        slots[index] = start[index]
    for row in range(ids.size):
        rows[slots[ids[row]]] = row
        slots[ids[row]] += 1


def sort_groups(rows: Numbers, start: Ints, major: Ints, minor: Ints | Numbers) -> None:
    """Sort the rows of each group in place by (major, minor).

    The sort is stable. Nearly sorted data, such as events, cost one comparison per row.
    """
    _sort_groups(rows, start, major, minor, np.empty_like(rows))


@compiled_in_place
def _sort_groups(rows, start, major, minor, late):  # type: ignore[no-untyped-def]
    """In each group, take out the rows that are less than an earlier row, sort them, and merge them back."""
    for group in range(start.size - 1):
        low, high = start[group], start[group + 1]
        kept = low
        for at in range(low, high):
            row = np.uint64(rows[at])
            if kept > low and _before(major, minor, row, rows[kept - 1]):
                late[at - kept] = row
                continue
            rows[kept] = row
            kept += 1
        if kept < high:
            _sort(late, high - kept, major, minor, rows, kept)
            _merge_back(rows, low, kept, high, late, major, minor)


@inline
def _before(major, minor, left, right):  # type: ignore[no-untyped-def]
    """Tell whether one row comes before another."""
    return major[left] < major[right] or (major[left] == major[right] and minor[left] < minor[right])


@inline
def _merge_back(rows, low, kept, high, late, major, minor):  # type: ignore[no-untyped-def]
    """Merge the sorted late rows with the rest, last row first."""
    stayed, to = kept - 1, high - 1
    for at in range(high - kept - 1, -1, -1):
        row = late[at]
        while stayed >= low and _before(major, minor, row, rows[stayed]):
            rows[to] = rows[stayed]
            stayed -= 1
            to -= 1
        rows[to] = row
        to -= 1


@inline
def _sort(rows, count, major, minor, scratch, free):  # type: ignore[no-untyped-def]
    """Sort the first rows: insert in blocks, then merge blocks that overlap; `scratch` is free from `free` on."""
    block = 24
    for left in range(0, count, block):
        _insert(rows, left, min(left + block, count), major, minor)
    width = block
    while width < count:
        for left in range(0, count - width, 2 * width):
            _merge(rows, left, left + width, min(left + 2 * width, count), major, minor, scratch, free)
        width *= 2


@inline
def _insert(rows, left, right, major, minor):  # type: ignore[no-untyped-def]
    for at in range(left + 1, right):
        row = rows[at]
        to = at
        while to > left and _before(major, minor, row, rows[to - 1]):
            rows[to] = rows[to - 1]
            to -= 1
        rows[to] = row


@inline
def _merge(rows, left, middle, right, major, minor, scratch, free):  # type: ignore[no-untyped-def]
    """Merge two sorted runs of rows."""
    if not _before(major, minor, rows[middle], rows[middle - 1]):
        return
    for at in range(left, middle):
        scratch[free + at - left] = rows[at]
    first, end, second, to = free, free + middle - left, middle, left
    while first < end and second < right:
        left_row, right_row = scratch[first], rows[second]
        if _before(major, minor, right_row, left_row):
            rows[to] = right_row
            second += 1
        else:
            rows[to] = left_row
            first += 1
        to += 1
    for at in range(first, end):
        rows[to + at - first] = scratch[at]


@compile_lazily
def list_tied_slots(rows, start, major, minor):  # type: ignore[no-untyped-def]
    """List the slots of sorted rows that are equal to a neighbour in their group by (major, minor)."""
    count = 0
    slots = np.empty(rows.size, np.int32)
    for index in range(start.size - 1):
        same = False
        for at in range(start[index], start[index + 1]):
            before = same
            row = rows[at]
            same = at + 1 < start[index + 1] and minor[row] == minor[rows[at + 1]] and major[row] == major[rows[at + 1]]
            if before or same:
                slots[count] = at
                count += 1
    return slots[:count].copy()


def number_ties(rows: Ints, keys: Sequence[npt.NDArray[np.generic]]) -> tuple[Ints, Ints]:
    """Number the runs of rows that are equal in all keys, and list the slots of rows in runs of two or more."""
    same = np.ones(max(rows.size - 1, 0), np.bool_)
    for key in keys:
        ordered = key[rows]
        same &= ordered[1:] == ordered[:-1]
    run = np.zeros(rows.size, np.int64)
    np.cumsum(~same, out=run[1:])
    alone = np.concatenate([[True], ~same, [True]])
    return run, np.flatnonzero(~(alone[:-1] & alone[1:])[: rows.size])


def positions_in(values: Ints, some: Ints) -> Ints:
    """Return the positions of the values that are in `some`, which is not empty."""
    least, places = int(some.min()), int(np.ptp(some)) + 1
    if not fits_a_table(places, values.size):
        return np.flatnonzero(np.isin(values, some))
    is_one, matches = np.zeros(places, np.bool_), np.empty(values.size, np.bool_)
    is_one[some - least] = True
    _among(values, least, is_one, matches)
    return np.flatnonzero(matches)


@compiled_in_place
def _among(values, least, is_one, matches):  # type: ignore[no-untyped-def]
    for row in range(values.size):
        place = values[row] - least
        matches[row] = 0 <= place < is_one.size and is_one[place]


def fits_a_table(places: int, rows: int) -> bool:
    """Tell whether a lookup table with this many places costs less than sorting or hashing the rows."""
    return places <= 4 * rows + 1024


def pairs(first: Numbers, second: Numbers, firsts: int, seconds: int) -> tuple[Numbers, int]:
    """Number the distinct pairs from 0 in the order of appearance, and return how many there are.

    All of `first` are below `firsts`, all of `second` below `seconds`.
    """
    if fits_a_table(firsts * seconds, first.size):
        return _pairs_in_table(first, second, seconds, np.full(firsts * seconds, -1, np.int32))
    encoded = pa.array(first.astype(np.int64) * seconds + second).dictionary_encode()
    return encoded.indices.to_numpy(), len(encoded.dictionary)


@compile_lazily
def _pairs_in_table(first, second, seconds, number_of):  # type: ignore[no-untyped-def]
    numbers = np.empty(first.size, np.int32)
    count = 0
    for row in range(first.size):
        pair = first[row] * seconds + second[row]
        if number_of[pair] < 0:
            number_of[pair] = count
            count += 1
        numbers[row] = number_of[pair]
    return numbers, count

"""Orders over columns: grouping by a small id, sorting and numbering inside the groups; linear for data in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from windrow.compiled import compiled

Ints = npt.NDArray[np.int64]


@compiled
def group(ids, size):  # type: ignore[no-untyped-def]
    """Return the rows grouped by id, stable, and where each of the `size` groups begins (size + 1)."""
    begin = np.zeros(size + 1, np.int64)
    for row in range(ids.size):
        begin[ids[row] + 1] += 1
    for index in range(size):
        begin[index + 1] += begin[index]
    slots = begin.copy()
    rows = np.empty(ids.size, np.int64)
    for row in range(ids.size):
        rows[slots[ids[row]]] = row
        slots[ids[row]] += 1
    return rows, begin


@compiled
def sort_groups(rows, begin, major, minor):  # type: ignore[no-untyped-def]
    """Sort the rows of each group in place by (major, minor): insertion in blocks, then merges where blocks overlap.

    Data that come nearly in order, as events do, cost a comparison a row.
    """
    block = 24
    scratch = np.empty(rows.size, np.int64)
    for index in range(begin.size - 1):
        low, high = begin[index], begin[index + 1]
        for left in range(low, high, block):
            for at in range(left + 1, min(left + block, high)):
                row = rows[at]
                to = at
                while to > left and (
                    major[rows[to - 1]] > major[row]
                    or (major[rows[to - 1]] == major[row] and minor[rows[to - 1]] > minor[row])
                ):
                    rows[to] = rows[to - 1]
                    to -= 1
                rows[to] = row
        width = block
        while width < high - low:
            for left in range(low, high - width, 2 * width):
                middle, right = left + width, min(left + 2 * width, high)
                a, b = rows[middle - 1], rows[middle]
                if major[a] < major[b] or (major[a] == major[b] and minor[a] <= minor[b]):
                    continue
                scratch[left:middle] = rows[left:middle]
                one, two, to = left, middle, left
                while one < middle and two < right:
                    a, b = scratch[one], rows[two]
                    if major[a] < major[b] or (major[a] == major[b] and minor[a] <= minor[b]):
                        rows[to] = a
                        one += 1
                    else:
                        rows[to] = b
                        two += 1
                    to += 1
                rows[to : to + middle - one] = scratch[one:middle]
            width *= 2


@compiled
def number(rows, begin, major):  # type: ignore[no-untyped-def]
    """Number the distinct values of `major` inside each group from 0, rows being sorted by it.

    Returns the number of each row, where each group's numbers begin over all groups, and one row for each number.
    """
    numbers = np.empty(rows.size, np.int64)
    begins = np.zeros(begin.size, np.int64)
    samples = np.empty(rows.size, np.int64)
    total = 0
    for index in range(begin.size - 1):
        begins[index] = total
        for at in range(begin[index], begin[index + 1]):
            row = rows[at]
            if at == begin[index] or major[row] != major[rows[at - 1]]:
                samples[total] = row
                total += 1
            numbers[row] = total - 1 - begins[index]
    begins[begin.size - 1] = total
    return numbers, begins, samples[:total]


def ties(rows: Ints, keys: Sequence[npt.NDArray[np.generic]]) -> tuple[Ints, Ints]:
    """Number the runs of rows that are equal in all keys, and list the slots of those in runs of two and more."""
    same = np.ones(max(rows.size - 1, 0), np.bool_)
    for key in keys:
        ordered = key[rows]
        same &= ordered[1:] == ordered[:-1]
    run = np.zeros(rows.size, np.int64)
    np.cumsum(~same, out=run[1:])
    alone = np.concatenate([[True], ~same, [True]])
    return run, np.flatnonzero(~(alone[:-1] & alone[1:])[: rows.size])


def dense(ids: npt.NDArray[np.integer], bound: int) -> tuple[Ints, int]:
    """Renumber ids below `bound` to 0..n-1 in their own order, and return how many there are."""
    if bound <= 4 * ids.size + 1024:
        used = np.zeros(bound, np.bool_)
        used[ids] = True
        return (np.cumsum(used) - 1)[ids], int(used.sum())
    values, inverse = np.unique(ids, return_inverse=True)
    return inverse.astype(np.int64), values.size

"""Find the messages that moved between two ledgers, as multisets: from where to where, and how many."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.model import canonical
from windrow.model.floors import Ints
from windrow.model.messages import COLUMNS
from windrow.reading.values import records
from windrow.replaying.report import Move


def moves(before: pa.Table, after: pa.Table, limit: int) -> tuple[int, tuple[Move, ...]]:
    """Compare two tables of messages with their `place`; return how many messages moved, and the first moves by time.

    Messages that are equal in every column cannot be told apart, so they are paired in order. Moves between the same
    two places count as one.
    """
    both, split = pa.concat_tables([before, after]).combine_chunks(), before.num_rows
    message = codes(canonical.joined([canonical.netstrings(both[name].combine_chunks()) for name in COLUMNS]))
    place = codes(both["place"].combine_chunks())
    left = np.flatnonzero(partners(message * (place.max(initial=0) + 1) + place, split) < 0)
    partner = partners(message[left], int(np.searchsorted(left, split)))
    once = np.flatnonzero((left < split) | (partner < 0))  # of two partners the one in `before`
    row, other = left[once], np.where(partner >= 0, left[partner], -1)[once]
    old, new = np.where(row < split, row, -1), np.where(row < split, other, row)
    moved = {name: both["place"].take(pa.array(at, mask=at < 0)) for name, at in (("before", old), ("after", new))}
    moved |= {"row": pa.array(row), "time": both["event_time"].take(pa.array(row))}
    ordered = pa.table(moved).sort_by([(name, "ascending") for name in ("time", "before", "after")])
    grouped = ordered.group_by(["before", "after"], use_threads=False).aggregate([("row", "first"), ("row", "count")])
    first = grouped.slice(0, limit)
    examples = records(both.select(list(COLUMNS)).take(first["row_first"]))
    columns = (first[name].to_pylist() for name in ("before", "after", "row_count"))
    return row.size, tuple(map(Move, *columns, examples))


def codes(values: pa.Array) -> Ints:
    """Number distinct values; equal ones have the same number."""
    return values.dictionary_encode().indices.to_numpy().astype(np.int64)


def partners(code: Ints, split: int) -> Ints:
    """Pair the rows before `split` with those from there on that have the same code, the first with the first.

    Returns the partner of each row, -1 for none.
    """
    key = 2 * code + (np.arange(code.size) >= split)
    order = np.argsort(key, kind="stable")
    rank = np.arange(code.size) - np.searchsorted(key[order], key[order])  # of a row among those of its side
    again = np.lexsort((key[order], rank, code[order]))  # partners are now neighbours
    order, rank = order[again], rank[again]
    at = np.flatnonzero((np.diff(code[order]) == 0) & (np.diff(rank) == 0))
    partner = np.full(code.size, -1)
    partner[order[at]], partner[order[at + 1]] = order[at + 1], order[at]
    return partner

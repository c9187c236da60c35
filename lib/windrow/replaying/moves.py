"""Find the messages that moved between two ledgers, as multisets: from where to where, and how many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model import canonical
from windrow.model.floors import Ints
from windrow.model.messages import COLUMNS
from windrow.reading.values import records
from windrow.replaying.report import Move


@dataclass(frozen=True, slots=True)
class Moves:
    """Moved messages, one element each: the place before and after (-1: none), and a row of `shown` as example."""

    places: pa.Array
    shown: pa.Table
    before: Ints
    after: Ints
    row: Ints

    @property
    def messages(self) -> int:
        """Return how many messages moved."""
        return self.row.size

    @classmethod
    def between(cls, before: pa.Table, after: pa.Table) -> Moves:
        """Compare two tables of messages with their `place`; leave out messages with the same place in both.

        Messages that are equal in every column cannot be distinguished, so they are paired in order.
        """
        both = pa.concat_tables([before, after]).combine_chunks()
        encoded = canonical.joined([canonical.netstrings(both[name].combine_chunks()) for name in COLUMNS])
        message = encoded.dictionary_encode().indices.to_numpy().astype(np.int64)
        encoded = both["place"].combine_chunks().dictionary_encode()
        place = encoded.indices.to_numpy().astype(np.int64)
        split = before.num_rows
        old, new = np.arange(split), np.arange(split, both.num_rows)
        old, new = _unpaired(old, new, message * (len(encoded.dictionary) + 1) + place)
        left, right = _paired(old, new, message)
        was, now = (np.where(row >= 0, place[np.maximum(row, 0)], -1) for row in (left, right))
        return cls(encoded.dictionary, both, was, now, np.where(left >= 0, left, right))

    def first(self, limit: int) -> Iterator[Move]:
        """Yield the first moves in the order of time; moves between the same two places count as one."""
        if not self.messages:
            return
        time = self.shown["event_time"].take(pa.array(self.row)).cast(pa.int64())
        order = np.lexsort((self.after, self.before, pc.fill_null(time, 0).to_numpy()))
        pair = self.before[order] * (len(self.places) + 1) + self.after[order]
        _, first, count = np.unique(pair, return_index=True, return_counts=True)
        chosen = np.argsort(first)[:limit]
        rows = order[first[chosen]]
        examples = records(self.shown.select(list(COLUMNS)).take(pa.array(self.row[rows])))
        names = [*self.places.to_pylist(), None]
        for at, number, example in zip(rows.tolist(), count[chosen].tolist(), examples, strict=True):
            yield Move(names[self.before[at]], names[self.after[at]], number, example)


def _unpaired(old: Ints, new: Ints, code: Ints) -> tuple[Ints, Ints]:
    """Return the rows of two lists that are left after pairing rows with the same code."""
    left, right = _paired(old, new, code)
    return left[right < 0], right[left < 0]


def _paired(old: Ints, new: Ints, code: Ints) -> tuple[Ints, Ints]:
    """Pair rows with the same code, the first with the first and so on; -1 stands for a missing partner."""
    keys = []
    for rows in (old, new):
        order = rows[np.argsort(code[rows], kind="stable")]
        ordered = code[order]
        keys.append((order, ordered, np.arange(ordered.size) - np.searchsorted(ordered, ordered)))
    (old, code_old, rank_old), (new, code_new, rank_new) = keys
    span = int(max(rank_old.max(initial=0), rank_new.max(initial=0))) + 1
    dense = np.unique(np.concatenate([code_old, code_new]), return_inverse=True)[1]
    key_old, key_new = dense[: old.size] * span + rank_old, dense[old.size :] * span + rank_new
    _, at_old, at_new = np.intersect1d(key_old, key_new, assume_unique=True, return_indices=True)
    alone_old, alone_new = np.delete(old, at_old), np.delete(new, at_new)
    left = np.concatenate([old[at_old], alone_old, np.full(alone_new.size, -1)])
    right = np.concatenate([new[at_new], np.full(alone_old.size, -1), alone_new])
    return left, right

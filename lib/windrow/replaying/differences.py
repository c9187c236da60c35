"""The differences of two ledgers, added up over the parts of their streams; of changes and moves the first ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import itemgetter
from typing import TypeAlias, get_args

from windrow.replaying.report import Change, Comparison, Move, What

SEPARATOR = "/"  # in the id of a batch: a place without it is the reason of a rejection
Listed: TypeAlias = tuple[tuple[bool, int | str], ...]


def listed(*values: int | str | None) -> Listed:
    """Return where something stands in a listing that is ordered by these values; None is last."""
    return tuple((value is None, "" if value is None else value) for value in values)


class Differences:
    """What was found so far, of changes and moves the first `limit`."""

    def __init__(self, limit: int) -> None:
        """Begin with none."""
        self._limit, self._counts, self._moved = limit, Counter[str](), 0
        self._changes: list[tuple[Listed, Change]] = []
        self._moves: dict[tuple[str | None, str | None], tuple[Listed, Move]] = {}

    def add_changes(self, counts: Counter[str], changes: list[tuple[Listed, Change]]) -> None:
        """Add what changed in a part: how often, and the first changes."""
        self._counts += counts
        self._changes = sorted([*self._changes, *changes], key=itemgetter(0))[: self._limit]

    def add_moves(self, moved: int, moves: list[tuple[Listed, Move]]) -> None:
        """Add what moved in a part: how many messages, the first moves, and all between reasons.

        Only those between reasons can be in several parts: the streams of a batch are in one.
        """
        self._moved += moved
        for listed, move in moves:
            places = move.before, move.after
            known = self._moves.get(places, (listed, replace(move, messages=0)))
            first = min(known, (listed, move), key=itemgetter(0))
            self._moves[places] = first[0], replace(first[1], messages=known[1].messages + move.messages)
        ordered = sorted(self._moves.items(), key=lambda item: item[1][0])
        self._moves = {
            places: found
            for number, (places, found) in enumerate(ordered)
            if number < self._limit or not any(SEPARATOR in (place or "") for place in places)
        }

    def compared(self, same: int, first_microbatch: int | None) -> Comparison:
        """Return the comparison of two ledgers with so many equal rows."""
        return Comparison(
            same=same,
            counts={what: self._counts[what] for what in get_args(What)},
            moved=self._moved,
            first_microbatch=first_microbatch,
            changes=tuple(change for _, change in self._changes),
            moves=tuple(move for _, move in self._moves.values())[: self._limit],
        )

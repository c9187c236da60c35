"""Put together what differs in the parts of two ledgers; of changes and moves the first ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from typing import TypeAlias, TypeVar

from windrow.replaying.report import Move

T = TypeVar("T")
SortKey: TypeAlias = tuple[tuple[bool, int | str], ...]
Listed: TypeAlias = tuple[SortKey, T]


def sort_key(*values: int | str | None) -> SortKey:
    """Return the place in a listing that is ordered by these values; None is last."""
    return tuple((value is None, "" if value is None else value) for value in values)


def first_in_order(listed: Iterable[Listed[T]], limit: int) -> tuple[T, ...]:
    """Return the first of what was found, in the order of the listing."""
    return tuple(entry for _, entry in sorted(listed, key=itemgetter(0))[:limit])


def add_up_moves(moves: Iterable[Listed[Move]]) -> list[Listed[Move]]:
    """Add up moves between the same two places, which are in several parts if both are reasons."""
    totals: dict[tuple[str | None, str | None], Listed[Move]] = {}
    for at, move in sorted(moves, key=itemgetter(0)):
        earliest, known = totals.get((move.before, move.after), (at, replace(move, message_count=0)))
        total = replace(known, message_count=known.message_count + move.message_count)
        totals[move.before, move.after] = earliest, total
    return list(totals.values())

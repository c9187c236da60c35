"""Rows that stay in memory up to a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

Rows = TypeVar("Rows", pa.Table, pa.ChunkedArray)
Place = TypeVar("Place", str, tuple[str, int])


@dataclass(slots=True)
class RowCache(Generic[Place, Rows]):
    """Rows by their place, the path of a file or a row group; what was read, written or used last is at the end."""

    rows: dict[Place, Rows] = field(default_factory=dict)
    _sizes: dict[Place, int] = field(default_factory=dict)  # adding up the buffers of a table takes long

    def use(self, place: Place) -> Rows:
        """Return the rows of a place, and mark it as the last one used."""
        self.rows[place] = rows = self.rows.pop(place)
        return rows

    def trim(self, is_live: Callable[[Place], bool], most: int) -> int:
        """Forget what is not live, and the oldest until the rest has at most `most` bytes; return its bytes."""
        total = 0
        for place in reversed(list(self.rows)):
            if place not in self._sizes:
                self._sizes[place] = self.rows[place].nbytes
            if is_live(place) and total + self._sizes[place] <= most:
                total += self._sizes[place]
            else:
                del self.rows[place], self._sizes[place]
        return total

    def forget(self, places: Iterable[Place]) -> None:
        """Forget places."""
        for place in self.rows.keys() & set(places):
            del self.rows[place]
            self._sizes.pop(place, None)

"""What was read of the files of live rows stays in memory, up to a bound, because a file never changes.

Of the files that are still live the newest stay: those with the rows that changed last, which are likely to change
again. Headers of open batches matter more than messages, because each microbatch looks at all of them. Of a large file
only the row groups that a microbatch needs are read. They stay too, the least recently used go first: windows of a
stream lie beside each other and close one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from windrow.ledger.headers import Headers
from windrow.model.floors import Ints

Rows = TypeVar("Rows", pa.Table, pa.ChunkedArray)
Place = TypeVar("Place", str, tuple[str, int])
RowGroup = tuple[str, int]  # the path of its file, and its number


@dataclass(slots=True)
class Kept(Generic[Place, Rows]):
    """Rows by their place, the path of a file or a row group; what was read, written or used last is at the end."""

    rows: dict[Place, Rows] = field(default_factory=dict)
    _sizes: dict[Place, int] = field(default_factory=dict)  # adding up the buffers of a table takes long

    def use(self, place: Place) -> Rows:
        """Return the rows of a place, which is the one used last from now on."""
        self.rows[place] = rows = self.rows.pop(place)
        return rows

    def trim(self, is_live: Callable[[Place], bool], most: int) -> int:
        """Forget what is not live, and the oldest until the rest has at most so many bytes; return how many."""
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


@dataclass(slots=True)
class FileCache:
    """Rows of files: `headers`, which are all rows but without the messages of open batches, and these `messages`.

    `groups` has the messages of row groups of files that are not there as a whole, and `group_ends` the rows at which
    the groups of such a file end. `open` has the headers of open batches from files that a microbatch has looked at.
    Between microbatches all have at most `most` bytes together.
    """

    most: int
    headers: Kept[str, pa.Table] = field(default_factory=Kept)
    messages: Kept[str, pa.ChunkedArray] = field(default_factory=Kept)
    groups: Kept[RowGroup, pa.ChunkedArray] = field(default_factory=Kept)
    group_ends: dict[str, Ints] = field(default_factory=dict)
    open: Headers = field(default_factory=lambda: Headers.none(pa.schema([])))

    def trim(self, live: AbstractSet[str], folded: bool = False) -> None:
        """Forget files that are not live, and what is too much: messages first, and old files first.

        Without `folded` the files that are gone were perhaps not replaced by a fold, but taken back by a RESTORE: then
        earlier versions of batches count again, and all headers are read anew.
        """
        gone = self.open.files.keys() - live
        # guard: restored-headers
        if (gone and not folded) or self.open.nbytes > self.most:
            self.open = Headers.none(self.open.rows.schema)
        else:
            self.open.remove(gone)
        left = self.most - self.open.nbytes
        left -= self.headers.trim(live.__contains__, left)
        left -= self.messages.trim(live.__contains__, left)
        self.groups.trim(lambda group: group[0] in live, left)
        self.group_ends = {path: ends for path, ends in self.group_ends.items() if path in live}

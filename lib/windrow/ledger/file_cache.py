"""What was read of the files of live rows stays in memory, up to a bound, because a file never changes.

Of the files that are still live the newest stay: those with the rows that changed last, which are likely to change
again. Headers of open batches matter more than messages, because each microbatch looks at all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from windrow.ledger.headers import Headers

Rows = TypeVar("Rows", pa.Table, pa.ChunkedArray)


@dataclass(slots=True)
class Kept(Generic[Rows]):
    """Rows by the path of their file, the file that was read or written last at the end."""

    rows: dict[str, Rows] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)  # adding up the buffers of a table takes long

    def trim(self, live: Collection[str], most: int) -> int:
        """Forget files that are not live, and the oldest until the rest has at most so many bytes; return how many."""
        total = 0
        for path in reversed(list(self.rows)):
            if path not in self._sizes:
                self._sizes[path] = self.rows[path].nbytes
            if path in live and total + self._sizes[path] <= most:
                total += self._sizes[path]
            else:
                del self.rows[path], self._sizes[path]
        return total

    def forget(self, paths: Iterable[str]) -> None:
        """Forget files."""
        for path in self.rows.keys() & set(paths):
            del self.rows[path]
            self._sizes.pop(path, None)


@dataclass(slots=True)
class FileCache:
    """Rows of files: `headers`, which are all rows but without the messages of open batches, and these `messages`.

    `open` has the headers of open batches from files that a microbatch has looked at. Between microbatches all have at
    most `most` bytes together.
    """

    most: int
    headers: Kept[pa.Table] = field(default_factory=Kept)
    messages: Kept[pa.ChunkedArray] = field(default_factory=Kept)
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
        left -= self.headers.trim(live, left)
        self.messages.trim(live, left)

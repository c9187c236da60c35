"""What was read of the files of live rows stays in memory, up to a bound, because a file never changes.

Of the files that are still live the newest stay: those with the rows that changed last, which are likely to change
again. Headers of open batches matter more than messages, because each microbatch looks at all of them.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import pyarrow as pa

from windrow.ledger.headers import Headers
from windrow.ledger.kept import RowCache
from windrow.ledger.row_groups import RowGroups


@dataclass(slots=True)
class FileCache:
    """Rows of files: `headers`, which are all rows but without the messages of open batches, and these `messages`.

    `groups` has messages of files that are not there as a whole. `open` has the headers of open batches from files that
    a microbatch has looked at. Between microbatches all have at most `most` bytes together.
    """

    most: int
    headers: RowCache[str, pa.Table] = field(default_factory=RowCache)
    messages: RowCache[str, pa.ChunkedArray] = field(default_factory=RowCache)
    groups: RowGroups = field(default_factory=RowGroups)
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
        self.groups.trim(live, left)

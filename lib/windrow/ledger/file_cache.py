"""Keep what was read from the files of live rows in memory, up to a bound; a file never changes.

Of the files that are still live, the newest stay: their rows changed last, and are likely to change again. Headers of
open batches matter more than messages, because each microbatch looks at all of them.
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
    """Rows of files: `headers` has all rows, without the messages of open batches, which are in `messages`.

    `groups` has messages of files that are only partly in memory. `open` has the headers of open batches from files
    that a microbatch has looked at. Between microbatches, all of them together have at most `most` bytes.
    """

    most: int
    headers: RowCache[str, pa.Table] = field(default_factory=RowCache)
    messages: RowCache[str, pa.ChunkedArray] = field(default_factory=RowCache)
    groups: RowGroups = field(default_factory=RowGroups)
    open: Headers = field(default_factory=lambda: Headers.none(pa.schema([])))

    def trim(self, live: AbstractSet[str], folded: bool = False) -> None:
        """Forget files that are not live, and what exceeds the bound: messages first, and old files first.

        Without `folded`, files that are gone may not have been replaced by a fold, but undone by a RESTORE: then
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

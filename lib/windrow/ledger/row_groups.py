"""Messages of open batches in large files, of which a microbatch reads only the row groups that it needs.

Row groups stay in memory, and the least recently used go first: windows of a stream lie next to each other and close
one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.columnar.arrow import to_plain_types
from windrow.ledger.kept import RowCache
from windrow.model.floors import Ints
from windrow.model.open_batches import MESSAGES

Opened = Callable[[str], AbstractContextManager[pq.ParquetFile]]


@dataclass(slots=True)
class RowGroups:
    """Messages by the path of a file and the number of a row group, and the rows at which the groups of a file end."""

    kept: RowCache[tuple[str, int], pa.ChunkedArray] = field(default_factory=RowCache)
    _ends: dict[str, Ints] = field(default_factory=dict)

    def messages(self, path: str, rows: Ints, opened: Opened) -> pa.ChunkedArray:
        """Return the messages of some rows of a file, in their order; `opened` opens a file that has to be read."""
        ends = self._ends.get(path)
        if ends is None or self._missing(path, ends, rows):
            ends = self._read(path, rows, opened)
        chunks, at, start = list[pa.Array](), np.empty(rows.size, np.int64), 0
        of = np.searchsorted(ends, rows, side="right")
        for group in _groups(ends, rows):
            messages = self.kept.use((path, group))
            chunks += messages.chunks
            at[of == group] = start + rows[of == group] - (ends[group] - len(messages))
            start += len(messages)
        return pa.chunked_array(chunks).take(pa.array(at))

    def trim(self, live: Collection[str], most: int) -> None:
        """Forget files that are not live, and the least recently used row groups that exceed `most` bytes."""
        self.kept.trim(lambda group: group[0] in live, most)
        self._ends = {path: ends for path, ends in self._ends.items() if path in live}

    def _missing(self, path: str, ends: Ints, rows: Ints) -> list[int]:
        return [group for group in _groups(ends, rows) if (path, group) not in self.kept.rows]

    def _read(self, path: str, rows: Ints, opened: Opened) -> Ints:
        """Read the row groups that are missing, in one request; return the rows at which the groups of the file end."""
        with opened(path) as parquet:
            sizes = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
            self._ends[path] = ends = np.cumsum(sizes)
            missing = self._missing(path, ends, rows)
            read = to_plain_types(parquet.read_row_groups(missing, columns=[MESSAGES]))[MESSAGES]
        start = 0
        for group in missing:
            self.kept.rows[path, group] = read.slice(start, sizes[group])
            start += sizes[group]
        return ends


def _groups(ends: Ints, rows: Ints) -> list[int]:
    """Return the row groups that contain some rows, given where each group ends."""
    groups: list[int] = np.unique(np.searchsorted(ends, rows, side="right")).tolist()
    return groups

"""Headers of open batches: the latest version of each batch without its messages, and where its messages are.

They stay in memory between microbatches, as long as the files that they come from are live. So a commit adds the rows
that it wrote, without comparing the versions of all batches again. Tombstones stay too, because an older file that is
read later may have their batch. Rows that a fold replaces go with their files: the new files have those that count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import boolean_scalar, conform, empty_table, filter_rows, from_numpy, to_numpy
from windrow.columnar.compiled import Flags
from windrow.ledger.versions import apply_versions, chains, require_whole
from windrow.model import tables
from windrow.model.floors import Ints
from windrow.model.open_batches import MESSAGES, BatchFilter
from windrow.model.tables import DELETED, WHOLE

VERSION = pa.schema(
    [("id", pa.string()), ("revision", pa.int64()), (WHOLE, pa.bool_()), ("file", pa.int64()), ("row", pa.int64())]
)
MANY_CHUNKS = 64  # with more, the chunks of a column are copied into one: a guess that balances both costs


@dataclass(slots=True)
class Headers:
    """The latest versions of the open batches in some `files` (path and number), with their tombstones.

    `versions` has all versions, with the number of the file and the row of each.
    """

    rows: pa.Table
    versions: pa.Table = field(default_factory=partial(empty_table, VERSION))
    files: dict[str, int] = field(default_factory=dict)

    @classmethod
    def none(cls, schema: pa.Schema) -> Self:
        """Return the headers of no file of a ledger."""
        own = [*tables.BATCH_COLUMNS, *(name for name, _ in tables.ROW_FIELDS)]
        columns = [field for field in schema if field.name in own and field.name != MESSAGES]
        return cls(empty_table(pa.schema([*columns, VERSION.field("file")])))

    def in_columns_of(self, schema: pa.Schema) -> Headers:
        """Return these headers if a ledger has their columns, else those of no file."""
        none = Headers.none(schema)
        return self if self.rows.schema == none.rows.schema else none

    @property
    def nbytes(self) -> int:
        """Return how many bytes they take in memory."""
        return int(self.rows.nbytes + self.versions.nbytes)

    def add(self, files: Mapping[str, pa.Table]) -> None:
        """Add the rows of files."""
        if not files:
            return
        parts, new = [], []
        for path, rows in files.items():
            self.files[path] = number = max(self.files.values(), default=-1) + 1
            place = [from_numpy(np.full(rows.num_rows, number)), from_numpy(np.arange(rows.num_rows))]
            parts.append(pa.Table.from_arrays([*(rows[name] for name in VERSION.names[:3]), *place], schema=VERSION))
            new.append(conform(rows.append_column("file", place[0]), self.rows.schema))
        self.versions = _of_few_chunks(pa.concat_tables([self.versions, *parts]))
        self.rows = _of_few_chunks(apply_versions(self.rows, pa.concat_tables(new), keep_tombstones=True))

    def remove(self, paths: Collection[str]) -> None:
        """Remove the rows of files."""
        if paths:
            gone = from_numpy(np.array([self.files.pop(path) for path in paths]))
            self.rows, self.versions = (
                filter_rows(rows, pc.invert(pc.is_in(rows["file"], gone))) for rows in (self.rows, self.versions)
            )

    def needed(self, batch_filter: BatchFilter) -> tuple[pa.Table, Flags]:
        """Return the headers of the open batches that a decision needs, and which of them can change."""
        return batch_filter.needed(self.rows, self._open())

    def select(self, *columns: str) -> pa.Table:
        """Return columns of the headers of all open batches."""
        return filter_rows(self.rows.select(columns), self._open())

    def _open(self) -> pa.ChunkedArray:
        """Tell which rows are headers of batches that are open: the others are tombstones."""
        # guard: tombstone-hides-header
        return pc.invert(pc.fill_null(self.rows[DELETED], boolean_scalar(False)))

    def parts_of(self, ids: pa.Array) -> tuple[Ints, Ints, Ints]:
        """Return the file and row of the versions that the batches of some ids consist of, and where each batch begins.

        The batches are in the order of ids, each with its versions in order. Raises IncompatibleTableError for a batch
        without a whole version.
        """
        versions = filter_rows(self.versions, pc.is_in(self.versions["id"], ids))
        of = to_numpy(pc.index_in(versions["id"], ids))
        revision = to_numpy(versions["revision"])
        part, start = chains(of, revision, versions[WHOLE], grown_only=False)
        require_whole(versions.take(from_numpy(part[start[:-1]])))
        return to_numpy(versions["file"])[part], to_numpy(versions["row"])[part], start


def _of_few_chunks(rows: pa.Table) -> pa.Table:
    return rows.combine_chunks() if rows["id"].num_chunks > MANY_CHUNKS else rows

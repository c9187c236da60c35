"""Rows on the disk of this process, in parts that each have all rows of some keys: for a version larger than memory.

The rows of each key go to one of many buckets; chunks of a raw depot go by their raw source. All buckets are in one
temporary file without a name, which is gone when the process ends, for whatever reason. A part is as many buckets as
fit into memory together.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from io import SEEK_END
from itertools import pairwise
from tempfile import gettempdir
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.columnar.arrow import combine_chunks, from_numpy, to_numpy
from windrow.columnar.compiled import Ints
from windrow.errors import IncompatibleTableError, InternalError, TableUnwritableError
from windrow.rows.arrow import ArrowRows
from windrow.rows.rows import Function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 256


@dataclass(frozen=True, slots=True)
class Room:
    """How much fits into memory: `most`, as `size` counts a table. Rows with the same value of `by` stay together.

    `unit` says what is counted, for error messages.
    """

    by: str
    most: int
    size: Callable[[pa.Table], int]
    unit: str

    @classmethod
    def of_messages(cls, most: int) -> Room:
        """Return the room for at most `most` messages."""
        return cls("key", most, lambda messages: int(messages.num_rows), "messages of one key, or of a few")

    @classmethod
    def of_chunks(cls, most: int) -> Room:
        """Return the room for chunks of at most `most` bytes."""
        return cls("raw_source", most, lambda chunks: int(chunks.nbytes), "bytes of one raw source, or of a few")


@dataclass(frozen=True, slots=True)
class SpilledRows:
    """Rows in a `file`: `parts` has the numbers of each part's buckets, `places` where each bucket's tables begin."""

    file: IO[bytes]
    places: Mapping[int, list[int]]
    parts: tuple[tuple[int, ...], ...]
    by_version: Counter[int]
    processed_on: str = "parts"

    @classmethod
    def of(cls, rows: Iterable[pa.Table], room: Room, file: IO[bytes]) -> SpilledRows:
        """Spill tables of rows into a file, to be read in parts that fit the room.

        Raises IncompatibleTableError for keys that exceed it, because a key cannot be split, TableUnwritableError for a
        full disk.
        """
        places, counts, by_version = defaultdict[int, list[int]](list), Counter[int](), Counter[int]()
        for table in rows:
            by_version += ArrowRows(table).versions()
            for number, part in _by_bucket(table, room.by):
                places[number].append(_append(part, file))
                counts[number] += room.size(part)
        return cls(file, places, tuple(map(tuple, _part_buckets(counts, room))), by_version)

    @property
    def count(self) -> int:
        """Return how many rows there are."""
        return self.by_version.total()

    def versions(self) -> dict[int, int]:
        """Return how many rows each depot version has."""
        return dict(self.by_version)

    def tables(self) -> Iterator[tuple[pa.Table, frozenset[int]]]:
        """Yield the rows part by part, with the numbers of its buckets; the first part also has those without rows."""
        # guard: buckets-without-rows
        others = frozenset(range(BUCKETS)) - self.places.keys()
        for part in self.parts:
            yield self._read(part), others.union(part)
            others = frozenset()
            pa.system_memory_pool().release_unused()  # or the memory of each part adds to that of the one before

    def _read(self, part: Iterable[int]) -> pa.Table:
        """Return the rows of some buckets."""
        return pa.concat_tables([_read(self.file, place) for number in part for place in self.places[number]])

    def map(self, function: Function, schema: pa.Schema) -> ArrowRows:
        """Return the results of a function on each part of the rows."""
        return ArrowRows(pa.concat_tables([schema.empty_table(), *(function(rows) for rows, _ in self.tables())]))

    def table(self) -> pa.Table:
        """Return the rows. Raises InternalError: they do not fit into memory."""
        raise InternalError("a version that is read in parts is never in memory as a whole")

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as a frame. Raises InternalError: only the embedded engine spills."""
        raise InternalError("the embedded engine has no frames")


@dataclass(frozen=True, slots=True)
class SpilledTable:
    """A table in a `file`, and functions that are applied when it is read."""

    file: IO[bytes]
    place: int
    by_version: Mapping[int, int]
    functions: tuple[Function, ...] = ()
    processed_on: str = "parts"

    @classmethod
    def of(cls, rows: pa.Table, file: IO[bytes]) -> SpilledTable:
        """Spill a table into a file. Raises TableUnwritableError for a full disk."""
        return cls(file, _append(rows, file), ArrowRows(rows).versions())

    @property
    def count(self) -> int:
        """Return how many rows there are."""
        return sum(self.by_version.values())

    def versions(self) -> dict[int, int]:
        """Return how many rows each depot version has."""
        return dict(self.by_version)

    def map(self, function: Function, schema: pa.Schema) -> SpilledTable:
        """Return the result of a function on the rows."""
        return replace(self, functions=(*self.functions, function))

    def table(self) -> pa.Table:
        """Read the rows."""
        return reduce(lambda rows, function: function(rows), self.functions, _read(self.file, self.place))

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as a frame. Raises InternalError: only the embedded engine spills."""
        raise InternalError("the embedded engine has no frames")


def _append(rows: pa.Table, file: IO[bytes]) -> int:
    """Write a table at the end of a file; return where it begins. Raises TableUnwritableError for a full disk."""
    try:
        place = file.seek(0, SEEK_END)
        with pa.ipc.new_stream(file, rows.schema) as stream:
            stream.write_table(rows)
        file.flush()
    except OSError as error:
        raise TableUnwritableError(
            f"{gettempdir()} has no room for a depot version that is read in parts: {error}",
            "Nothing was written. Set TMPDIR to a directory with room for the version, or raise max_memory_bytes.",
        ) from error
    return place


def _read(file: IO[bytes], place: int) -> pa.Table:
    """Read the table that begins at a place of a file."""
    file.seek(place)
    with pa.ipc.open_stream(file) as stream:
        return stream.read_all()


def buckets_of(keys: pa.ChunkedArray | pa.Array) -> Ints:
    """Return the bucket of each key; NULL is in the first one."""
    coded = combine_chunks(keys).dictionary_encode()
    numbers = np.array([*(zlib.crc32(key.encode()) % BUCKETS for key in coded.dictionary.to_pylist()), 0])
    buckets: Ints = numbers[to_numpy(coded.indices.fill_null(numbers.size - 1))]
    return buckets


def _by_bucket(rows: pa.Table, by: str) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of a table bucket by bucket, in their order."""
    bucket = buckets_of(rows[by])
    order = np.argsort(bucket, kind="stable")
    numbers, start = np.unique(bucket[order], return_index=True)
    rows = rows.take(from_numpy(order))
    for number, (first, stop) in zip(numbers.tolist(), pairwise([*start, rows.num_rows]), strict=True):
        yield number, rows.slice(first, stop - first)


def _part_buckets(counts: Mapping[int, int], room: Room) -> list[list[int]]:
    """Return the numbers of the buckets of each part. Raises IncompatibleTableError for one that is too large."""
    parts, count = list[list[int]](), room.most
    for number, size in sorted(counts.items()):
        if size > room.most:
            raise IncompatibleTableError(
                f"a depot version has {size:,} {room.unit}, which must be in memory together; "
                f"max_memory_bytes has room for {room.most:,}",
                "Nothing was written. Raise max_memory_bytes.",
            )
        if count + size > room.most:
            parts.append([])
            count = 0
        parts[-1].append(number)
        count += size
    return parts

"""Rows on disk: each part has all rows of some streams, or of some raw sources, and fits in memory.

All rows are in one temporary file without a name, which vanishes with the process, however that ends. If there are few
rows, they stay in memory, so that small tables need no disk. On Spark, `Block`s carry rows from task to task.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import SEEK_END
from itertools import pairwise
from tempfile import SpooledTemporaryFile
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from windrow.columnar.arrow import combine_chunks, to_numpy
from windrow.delta.database import disk_error
from windrow.verify.columns import Ints

BUCKETS = 256  # streams go to buckets by a hash of source and key, raw sources by theirs; a part is some buckets
BLOCK_SHARE = 16  # of the memory: rows that are sorted by bucket at a time
PART_SHARE = 12  # of the memory: Arrow's bytes of a part, which DuckDB holds up to five times while it joins and sorts
Part = tuple[int, ...]
EVERY: Part = tuple(range(BUCKETS))


class Block(NamedTuple):
    """Rows of a table in one bucket, as an Arrow stream; `byte_count` is their size in memory."""

    name: str
    bucket: int
    byte_count: int
    content: bytes


class BlockWriter:
    """Turns rows into blocks, `block_bytes` at a time; rows with equal values in the columns `by` share a bucket."""

    def __init__(self, block_bytes: int, by: Sequence[str]) -> None:
        self._block_bytes, self._by = block_bytes, by
        self._waiting: dict[str, list[pa.Table]] = defaultdict(list)
        self._waiting_bytes = Counter[str]()

    def add(self, name: str, rows: pa.Table) -> Iterator[Block]:
        """Add rows to a table; yield the blocks that are full."""
        step = max(1, rows.num_rows * self._block_bytes // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, step):
            block = rows.slice(start, step)
            self._waiting[name].append(block)
            self._waiting_bytes[name] += block.nbytes
            if self._waiting_bytes[name] >= self._block_bytes:
                yield from self._blocks(name)

    def close(self) -> Iterator[Block]:
        """Yield blocks of waiting rows."""
        for name in list(self._waiting):
            yield from self._blocks(name)

    def _blocks(self, name: str) -> Iterator[Block]:
        rows = pa.concat_tables(self._waiting.pop(name))
        del self._waiting_bytes[name]
        hashes = [_hashes(rows[column]) for column in self._by]
        bucket = np.sum([number * weight for weight, number in enumerate(hashes, 1)], axis=0) % BUCKETS
        numbers, begins = np.unique(np.sort(bucket), return_index=True)
        rows = rows.take(pa.array(np.argsort(bucket, kind="stable")))
        for number, (start, end) in zip(numbers.tolist(), pairwise([*begins, rows.num_rows]), strict=True):
            part = rows.slice(start, end - start)
            sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_stream(sink, part.schema, options=options) as stream:
                stream.write_table(part)
            yield Block(name, number, part.nbytes, sink.getvalue().to_pybytes())


class PartedRows:
    """Named tables of rows, written as they come and read part by part.

    Rows with equal values in the columns `by` are in the same part.
    """

    def __init__(self, max_memory_bytes: int, by: Sequence[str] = ("source", "key")) -> None:
        self.max_memory_bytes, self._by = max_memory_bytes, by
        self._file = SpooledTemporaryFile(max_memory_bytes // BLOCK_SHARE)  # noqa: SIM115 - `close` closes it
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._file.truncate(0)
        self._writer = BlockWriter(self.max_memory_bytes // BLOCK_SHARE, self._by)
        self._places: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        self._schemas: dict[str, pa.Schema] = {}
        self.byte_count = Counter[int]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the rows."""
        with suppress(OSError):  # a full disk cannot take buffered rows, which was reported already
            self._file.close()

    def add(self, name: str, rows: pa.Table) -> None:
        """Add rows to a table. Raises TableUnwritableError for a full disk."""
        self._schemas[name] = rows.schema
        for block in self._writer.add(name, rows):
            self.put(block)

    def put(self, block: Block) -> None:
        """Add the rows of a block. Raises TableUnwritableError for a full disk."""
        self.byte_count[block.bucket] += block.byte_count
        try:
            place = self._file.seek(0, SEEK_END)
            size = self._file.write(block.content)
            self._file.flush()
        except OSError as error:
            raise disk_error(error) from error
        self._places[block.name][block.bucket].append((place, size))

    def read(self, name: str, part: Part) -> pa.RecordBatchReader:
        """Return the rows of a table in some buckets, read on demand. Call `close_blocks` first."""

        def batches() -> Iterator[pa.RecordBatch]:
            places = self._places[name]
            for place, size in sorted(place for bucket in part for place in places.get(bucket, ())):
                self._file.seek(place)
                with pa.ipc.open_stream(pa.py_buffer(self._file.read(size))) as stream:
                    yield from stream

        return pa.RecordBatchReader.from_batches(self._schemas[name], batches())

    def close_blocks(self) -> None:
        """Write waiting rows, so that `byte_count` covers all rows. Raises TableUnwritableError for a full disk."""
        for block in self._writer.close():
            self.put(block)


def divide(byte_counts: Sequence[Counter[int]], max_memory_bytes: int) -> list[Part]:
    """Return the buckets of each part, as many as fit together; a larger bucket is a part by itself."""
    total = sum(byte_counts, Counter[int]())
    parts, size, room = list[Part](), 0, max_memory_bytes // PART_SHARE
    for bucket, byte_count in sorted(total.items()):
        if not parts or size + byte_count > room:
            parts.append(())
            size = 0
        parts[-1] += (bucket,)
        size += byte_count
    return parts


def _hashes(texts: pa.ChunkedArray) -> Ints:
    coded = combine_chunks(texts).dictionary_encode()
    hashes = np.array([*(zlib.crc32(text.encode()) for text in coded.dictionary.to_pylist()), 0], np.int64)
    return np.asarray(hashes[to_numpy(coded.indices, null=len(coded.dictionary))])

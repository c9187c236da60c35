"""Write chunks to Parquet files in the directory of a raw depot. A file counts once a commit names it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem

from windrow.delta.statistics import statistics
from windrow.model import chunks
from windrow.model.chunks import Chunk

FILE_BYTES = 134_217_728  # on disk, about
GROUP_BYTES = 8_388_608  # in memory: readers hold a row group at a time as well
GROUP_ROWS = 65_536
NAMES = ["raw_source", "sequence", "last", "received_at"]  # statistics of the bytes would be useless


class ChunkFiles:
    """Writes the chunks of one raw source; a row group is written while the next one is collected.

    If the `with` block ends with an error, files that were not taken are removed.
    """

    def __init__(self, store: FileSystem, name: str, raw_source: str, received_at: int) -> None:
        """Write files `part-NAME-NUMBER` into `store`."""
        self._store, self._name, self._raw_source, self._received_at = store, name, raw_source, received_at
        self._pool = ThreadPoolExecutor(1, "windrow-chunks")
        self._writing: Future[None] | None = None
        self._group: list[Chunk] = []
        self._held = 0
        self._headers: list[Chunk] = []
        self._stream: Any = None
        self._writer: Any = None
        self._begun = 0
        self._opened: list[str] = []
        self._added: list[AddAction] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._pool.shutdown()
        if kind is not None:
            with suppress(Exception):  # the first error is the one to report
                self._close()
            discard(self._store, self._opened)

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk."""
        self._group.append(chunk)
        self._held += len(chunk.content)
        if self._held >= GROUP_BYTES or len(self._group) >= GROUP_ROWS:
            self._flush()

    def take(self) -> tuple[AddAction, ...]:
        """Write the remaining chunks, and return the new files."""
        self._flush()
        self._wait()
        self._close()
        taken, self._added, self._opened = tuple(self._added), [], []
        return taken

    def _flush(self) -> None:
        self._wait()
        if self._group:
            self._writing = self._pool.submit(self._write, self._group)
            self._group, self._held = [], 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write(self, group: list[Chunk]) -> None:
        if self._writer is None:
            self._open()
        self._writer.write_table(chunks.rows(self._raw_source, group, self._received_at), row_group_size=len(group))
        self._headers += [replace(chunk, content=b"") for chunk in group]
        if self._stream.tell() >= FILE_BYTES:
            self._close()

    def _open(self) -> None:
        path = f"part-{self._name}-{self._begun:05}.zstd.parquet"
        self._begun += 1
        self._opened.append(path)
        self._stream = self._store.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._stream,
            chunks.RAW,
            compression="zstd",
            compression_level=1,
            use_dictionary=["raw_source"],
            write_statistics=NAMES,
        )

    def _close(self) -> None:
        """Finish the open file, if there is one."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        writer.close()
        size = self._stream.tell()
        self._stream.close()
        result = statistics(chunks.rows(self._raw_source, self._headers, self._received_at))
        now = time.time_ns() // 1_000_000
        self._added.append(AddAction(self._opened[-1], size, {}, now, True, result))
        self._headers = []


def discard(store: FileSystem, paths: Iterable[str]) -> None:
    """Remove files that no commit names. Files that cannot be removed are left to the table's clean-up."""
    for path in paths:
        with suppress(OSError):
            store.delete_file(path)

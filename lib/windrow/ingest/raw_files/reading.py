"""Read raw files, each once, and write their chunks to Parquet files in the depot's directory, without a commit.

A Parquet file counts once a commit names it.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem

from windrow.delta.statistics import statistics
from windrow.delta.table import translate_write_errors
from windrow.formats.codecs import encode
from windrow.formats.settings import FormatSettings
from windrow.ingest.content import PIECE_BYTES, ByteCounter, UnchangedContent
from windrow.ingest.raw_files.depot import FilePart, RawDepot, discard, other_content_error
from windrow.model.chunks import FIRST, RAW, Chunk, cut, rows

FILE_BYTES = 134_217_728  # on disk, about
GROUP_BYTES = 8_388_608  # in memory: readers hold a row group at a time as well
GROUP_ROWS = 65_536
NAMES = ["raw_source", "sequence", "last", "received_at"]  # statistics of the bytes would be useless
BEGIN_BYTES = 65_536  # different files seldom share this many first bytes


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read, its raw source, and its size in bytes, None if unknown."""

    file: str
    raw_source: str
    byte_count: int | None


class RunningDigest:
    """The number of bytes seen so far, their digest, and the digest of the first ones."""

    def __init__(self) -> None:
        self._hash, self._first = hashlib.sha256(), bytearray()
        self.begin: str | None = None  # the SHA-256 of the first bytes, None while there are too few
        self.byte_count = 0

    def add(self, piece: bytes) -> None:
        """Add the next bytes."""
        self._hash.update(piece)
        self.byte_count += len(piece)
        if self.begin is None:
            self._first += piece[: BEGIN_BYTES - len(self._first)]
            if len(self._first) == BEGIN_BYTES:
                self.begin = hashlib.sha256(self._first).hexdigest()
                self._first.clear()

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all bytes."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class RawFileReader:
    """Reads files, cuts them into chunks and writes the chunks, without a commit."""

    depot: RawDepot
    now: Callable[[], int]
    chunk_bytes: int
    max_commit_bytes: int
    part: FormatSettings
    passed: ByteCounter

    def in_order(self, sources: Sequence[SourceFile], readers: int) -> Generator[FilePart, None, None]:
        """Yield the portions in the order of the sources; the files of portions that are not taken are removed."""
        if len(sources) == 1 or readers == 1:  # in this thread, which a signal can interrupt
            for source in sources:
                with closing(self.read(source)) as portions:
                    yield from portions
            return
        ahead: deque[_Ahead] = deque()
        with ThreadPoolExecutor(readers, "windrow-ingest") as pool:
            try:
                for source in sources:
                    if len(ahead) == 2 * readers:
                        yield from ahead[0].portions()
                        ahead.popleft()
                    ahead.append(_Ahead(self.read(source), pool))
                while ahead:
                    yield from ahead[0].portions()
                    ahead.popleft()
            finally:
                self.passed.stop.set()
                for part in ahead:
                    part.leave(self.depot.discard)

    def read(self, source: SourceFile) -> Generator[FilePart, None, None]:
        """Read a file to its end, and write the chunks after those that the depot has of its raw source."""
        content = UnchangedContent(source.file, max(self.chunk_bytes, PIECE_BYTES), self.passed)
        seen = RunningDigest()
        pieces = content.decode(self.part)
        if self.depot.complete_size(source.raw_source) is not None:
            for piece in pieces:
                seen.add(piece)
            yield _portion(source, 0, FIRST - 1, seen, content.byte_count)
            return
        start = self.depot.incomplete_size(source.raw_source)
        rest = _skip(pieces, start, seen)
        chunks = self._chunks_before(source, start, seen, bool(rest)) if start else FIRST - 1
        pieces = chain([rest], pieces)
        written = ChunkFiles(self.depot.store, uuid4().hex, source.raw_source, self.now())
        with translate_write_errors(self.depot.location, "depot"), written as files:
            for chunk in cut(pieces, self.chunk_bytes, chunks + 1):
                if seen.byte_count > start and seen.byte_count - start + len(chunk.content) > self.max_commit_bytes:
                    yield replace(_portion(source, start, chunk.sequence - 1, seen), added=files.take())
                    start = seen.byte_count
                seen.add(chunk.content)
                files.add(replace(chunk, content=encode(chunk.content, self.part.compression)))
                chunks = chunk.sequence
            yield replace(_portion(source, start, chunks, seen, content.byte_count), added=files.take())

    def _chunks_before(self, source: SourceFile, start: int, seen: RunningDigest, more: bool) -> int:
        """Return how many chunks the depot has of a source. Raises InputFileError if the file has other content."""
        if seen.byte_count == start and more:
            return self.depot.chunks_of(source.file, source.raw_source, start, seen.digest)
        raise other_content_error(
            source.file, source.raw_source, f"the depot has {start:,} bytes of it, but the file was longer"
        )


class _Ahead:
    """A file that a thread reads ahead, and its portions so far."""

    def __init__(self, reading: Generator[FilePart, None, None], pool: ThreadPoolExecutor) -> None:
        self._read: SimpleQueue[FilePart | None] = SimpleQueue()
        self._future: Future[None] = pool.submit(self._run, reading)
        self._future.add_done_callback(lambda _: self._read.put(None))

    def _run(self, reading: Generator[FilePart, None, None]) -> None:
        with closing(reading):
            for portion in reading:
                self._read.put(portion)

    def portions(self) -> Iterator[FilePart]:
        """Yield the portions as they come. Raises what reading raises."""
        while (portion := self._read.get()) is not None:
            yield portion
        self._future.result()

    def leave(self, discard: Callable[[FilePart], None]) -> None:
        """Discard the portions not taken, including those to come."""
        self._future.cancel()

        def left(_: Future[None]) -> None:
            while not self._read.empty():
                if (portion := self._read.get()) is not None:
                    discard(portion)

        self._future.add_done_callback(left)


def _skip(pieces: Iterator[bytes], byte_count: int, seen: RunningDigest) -> bytes:
    """Read past `byte_count` bytes of the pieces; return the next bytes, none at the end."""
    while piece := next(pieces, b""):
        within = byte_count - seen.byte_count
        seen.add(piece[:within])
        if rest := piece[within:]:
            return rest
    return piece


def _portion(source: SourceFile, start: int, chunks: int, seen: RunningDigest, size: int | None = None) -> FilePart:
    """Return a portion up to the bytes seen so far; with the size of its file it is the last one."""
    return FilePart(
        name=uuid4().hex,
        file=source.file,
        raw_source=source.raw_source,
        start=start,
        byte_count=seen.byte_count,
        chunks=chunks,
        digest=seen.digest,
        begin=seen.begin,
        last=size is not None,
        size=size or 0,
    )


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
        self._writer.write_table(rows(self._raw_source, group, self._received_at), row_group_size=len(group))
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
            RAW,
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
        result = statistics(rows(self._raw_source, self._headers, self._received_at))
        now = time.time_ns() // 1_000_000
        self._added.append(AddAction(self._opened[-1], size, {}, now, True, result))
        self._headers = []

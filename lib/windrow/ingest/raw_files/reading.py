"""Raw files read: each once, into Parquet files that lie in the depot's directory and count when they are committed."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from queue import SimpleQueue
from threading import Event, Lock
from uuid import uuid4

from windrow.delta.table import writing
from windrow.errors import FileRefused
from windrow.formats.codecs import Codec, CodecError, decoded, encode
from windrow.ingest.raw_files.content import Content
from windrow.ingest.raw_files.depot import RawDepot, refused
from windrow.ingest.raw_files.parts import Parts
from windrow.ingest.raw_files.portion import Portion
from windrow.model.chunks import FIRST, cut

BEGIN_BYTES = 65_536  # that files begin alike with so many bytes is seldom, unless they are the same
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Coded:
    """A codec, and how many bytes a frame of it may hold."""

    name: Codec
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read, the raw source that it is, and its bytes, as far as they are known."""

    file: str
    raw_source: str
    byte_count: int | None


class Passed:
    """Adds up what several threads read, and has them stop."""

    def __init__(self, sources: Sequence[Source], progress: Progress) -> None:
        """Tell `progress` of what passes, and of how much there is."""
        sizes = [one.byte_count for one in sources if one.byte_count is not None]
        self._total = sum(sizes) if len(sizes) == len(sources) else None
        self._progress, self._lock, self._done = progress, Lock(), 0
        self.stop = Event()

    def __call__(self, byte_count: int) -> None:
        """Count bytes. Raises CancelledError when it was told to stop."""
        if self.stop.is_set():
            raise CancelledError
        with self._lock:
            self._done += byte_count
            self._progress(self._done, self._total)


class Seen:
    """What was seen of a content: how many bytes, their digest, and that of the first ones."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._hash, self._first = hashlib.sha256(), bytearray()
        self._begin: str | None = None
        self.byte_count = 0

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._hash.update(piece)
        self.byte_count += len(piece)
        if self._begin is None:
            self._first += piece[: BEGIN_BYTES - len(self._first)]
            if len(self._first) == BEGIN_BYTES:
                self._begin = hashlib.sha256(self._first).hexdigest()
                self._first.clear()

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all of them."""
        return self._hash.hexdigest()

    @property
    def begin(self) -> str | None:
        """Return the SHA-256 of the first ones, None while there are too few."""
        return self._begin


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read, cut into chunks and written, without a commit."""

    depot: RawDepot
    now: Callable[[], int]
    chunk_bytes: int
    commit_bytes: int
    codec: Coded | None
    passed: Passed

    def in_order(self, sources: Sequence[Source], readers: int) -> Generator[Portion, None, None]:
        """Yield the portions in the order of the sources; what nobody takes any more is removed."""
        if len(sources) == 1 or readers == 1:  # in this thread, which a signal interrupts
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
                for one in ahead:
                    one.leave(self.depot.discard)

    def read(self, source: Source) -> Generator[Portion, None, None]:
        """Read a file to its end, and write its chunks behind those that the depot has of its raw source."""
        content, seen = Content(source.file, self.chunk_bytes, self.passed), Seen()
        pieces = self._decoded(source.file, content.pieces())
        if self.depot.recorded(source.raw_source) is not None:
            for piece in pieces:
                seen.add(piece)
            yield _portion(source, 0, FIRST - 1, seen, content.byte_count)
            return
        start = self.depot.begun(source.raw_source)
        rest = _passed_over(pieces, start, seen)
        chunks = self._chunks_before(source, start, seen, bool(rest)) if start else FIRST - 1
        pieces = chain([rest], pieces)
        written = Parts(self.depot.store, uuid4().hex, source.raw_source, self.now())
        with writing(self.depot.location, "depot"), written as parts:
            for chunk in cut(pieces, self.chunk_bytes, chunks + 1):
                if seen.byte_count > start and seen.byte_count - start + len(chunk.content) > self.commit_bytes:
                    yield replace(_portion(source, start, chunk.sequence - 1, seen), added=parts.take())
                    start = seen.byte_count
                seen.add(chunk.content)
                parts.add(
                    chunk if self.codec is None else replace(chunk, content=encode(chunk.content, self.codec.name))
                )
                chunks = chunk.sequence
            yield replace(_portion(source, start, chunks, seen, content.byte_count), added=parts.take())

    def _chunks_before(self, source: Source, start: int, seen: Seen, more: bool) -> int:
        """Return how many chunks the depot has of a source. Raises FileRefused for a file that is another one."""
        if seen.byte_count == start and more:
            return self.depot.chunks_of(source.file, source.raw_source, start, seen.digest)
        raise refused(source.file, source.raw_source, f"{start:,} bytes of it are in the depot, and more were to come")

    def _decoded(self, file: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield what a file holds. Raises FileRefused for what is none of the codec."""
        if self.codec is None:
            yield from pieces
            return
        try:
            yield from decoded(pieces, self.codec.name, self.codec.most_bytes)
        except CodecError as error:
            raise FileRefused(
                f"{file}: {error}", "It is not whole in the depot. See [format] codec and max_decoded_bytes."
            ) from error


class _Ahead:
    """A file that a thread reads, and its portions as far as they are there."""

    def __init__(self, reading: Generator[Portion, None, None], pool: ThreadPoolExecutor) -> None:
        self._read: SimpleQueue[Portion | None] = SimpleQueue()
        self._future: Future[None] = pool.submit(self._run, reading)
        self._future.add_done_callback(lambda _: self._read.put(None))

    def _run(self, reading: Generator[Portion, None, None]) -> None:
        with closing(reading):
            for portion in reading:
                self._read.put(portion)

    def portions(self) -> Iterator[Portion]:
        """Yield the portions as they come. Raises what reading raises."""
        while (portion := self._read.get()) is not None:
            yield portion
        self._future.result()

    def leave(self, discard: Callable[[Portion], None]) -> None:
        """Discard what nobody took, also what is still to come."""
        self._future.cancel()

        def left(_: Future[None]) -> None:
            while not self._read.empty():
                if (portion := self._read.get()) is not None:
                    discard(portion)

        self._future.add_done_callback(left)


def _passed_over(pieces: Iterator[bytes], byte_count: int, seen: Seen) -> bytes:
    """Take so many bytes from the pieces; return the next ones, none at the end."""
    while piece := next(pieces, b""):
        within = byte_count - seen.byte_count
        seen.add(piece[:within])
        if rest := piece[within:]:
            return rest
    return piece


def _portion(source: Source, start: int, chunks: int, seen: Seen, size: int | None = None) -> Portion:
    """Return a portion up to what was seen; with the size of its file it is the last one."""
    return Portion(
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

"""Raw files into a raw depot: some are read at a time, and committed in the order in which they were named.

The order of the depot's versions decides what is late, so what is read ahead waits for its turn. A file is read once.
Whether the depot has its content is known at the end of it, and then what was written is removed. A file whose raw
source the depot has can add nothing, and is only hashed, or not even read when its length says that it is another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Event, Lock
from uuid import uuid4

from windrow.chunks import CHUNK_BYTES, Chunk, cut
from windrow.engine.creation import create_raw_depot
from windrow.errors import FileRefused
from windrow.formats.codecs import Codec, CodecError, decoded, encode
from windrow.rawfiles.content import STANDARD_INPUT, Content, size_of
from windrow.rawfiles.depot import RawDepot, Read
from windrow.rawfiles.parts import Parts
from windrow.storage import writing

READERS = 2
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Coded:
    """A codec, and how many octets a frame of it may hold."""

    name: Codec
    most_octets: int


@dataclass(frozen=True, slots=True)
class RawIngested:
    """What became of one file: the octets and chunks it added, in which depot version; `known` files added none."""

    file: str
    raw_source: str
    octets: int
    chunks: int
    depot_version: int
    known: bool


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read, the raw source that it is, and its octets, as far as they are known."""

    file: str
    raw_source: str
    octets: int | None


def ingest(  # noqa: PLR0913 - what may be chosen
    location: str,
    files: Sequence[str],
    now: Callable[[], int],
    keep: str = "90d",
    *,
    raw_source: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    readers: int = READERS,
    codec: Coded | None = None,
    progress: Progress = lambda done, total: None,
) -> Iterator[RawIngested]:
    """Append files to the raw depot at a path, one commit a file, and yield what became of each.

    A raw source is the path as given, or `raw_source` for one file; `-` is standard input. `now` is the wall clock in
    microseconds: the chunks of a file have the time at which its reading began. `readers` files are read at a time.
    With a `codec` a file is one or more frames of it, and so is each chunk.
    `progress` is told by any of them how many octets were read, and of how many. Raises FileRefused.
    """
    sources = _sources(files, raw_source)
    create_raw_depot(location, keep)
    depot = RawDepot(location)
    for one in sources:
        depot.require_same(one.file, one.raw_source, one.octets)
    reading = _Reading(depot, now, chunk_bytes, codec, _Passed(sources, progress))
    with closing(reading.in_order(sources, readers)) as whole:
        for read in whole:
            version, known = depot.commit(read)
            if not known:
                depot.look_after(version)
            octets = 0 if known else read.octets
            chunks = 0 if known else read.chunks
            yield RawIngested(read.file, read.raw_source, octets, chunks, version, known)


def _sources(files: Sequence[str], raw_source: str | None) -> list[Source]:
    if raw_source is not None and len(files) != 1:
        raise FileRefused("--raw-source names one file", "Ingest the files one by one, or by their paths, without it.")
    if raw_source is None and STANDARD_INPUT in files:
        raise FileRefused("standard input has no name", "Say what it is: --raw-source NAME.")
    return [Source(file, _named(file if raw_source is None else raw_source), size_of(file)) for file in files]


def _named(raw_source: str) -> str:
    try:
        octets = raw_source.encode()
    except UnicodeEncodeError as error:
        raise FileRefused(f"the name of {raw_source!a} is no UTF-8", "Give it one: --raw-source NAME.") from error
    if not octets:
        raise FileRefused("a raw source has a name", "Say --raw-source NAME.")
    return raw_source


class _Passed:
    """Adds up what several threads read, and has them stop."""

    def __init__(self, sources: Sequence[Source], progress: Progress) -> None:
        sizes = [one.octets for one in sources if one.octets is not None]
        self._total = sum(sizes) if len(sizes) == len(sources) else None
        self._progress, self._lock, self._done = progress, Lock(), 0
        self.stop = Event()

    def __call__(self, octets: int) -> None:
        if self.stop.is_set():
            raise CancelledError
        with self._lock:
            self._done += octets
            self._progress(self._done, self._total)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How files are read and their chunks written, without a commit."""

    depot: RawDepot
    now: Callable[[], int]
    chunk_bytes: int
    codec: Coded | None
    passed: _Passed

    def in_order(self, sources: Sequence[Source], readers: int) -> Generator[Read, None, None]:
        """Yield what was read in the order of the sources; what nobody takes any more is removed."""
        if len(sources) == 1 or readers == 1:  # in this thread, which a signal interrupts
            yield from map(self.read, sources)
            return
        waiting: deque[Future[Read]] = deque()
        with ThreadPoolExecutor(readers, "windrow-ingest") as pool:
            try:
                for source in sources:
                    if len(waiting) == 2 * readers:
                        yield _first(waiting)
                    waiting.append(pool.submit(self.read, source))
                while waiting:
                    yield _first(waiting)
            finally:
                self.passed.stop.set()
                for future in waiting:
                    future.cancel()
                    future.add_done_callback(self._discard)

    def read(self, source: Source) -> Read:
        """Read a file to its end, and write its chunks unless the depot has its raw source."""
        name, content = uuid4().hex, Content(source.file, self.chunk_bytes, self.passed)
        if self.depot.recorded(source.raw_source) is not None:
            deque(content.pieces(), maxlen=0)
            return Read(name, source.file, source.raw_source, content.octets, content.digest)
        written = Parts(self.depot.store, name, source.raw_source, self.now())
        with writing(self.depot.location, "depot"), written as parts:
            for chunk in self._chunks(source.file, content.pieces()):
                parts.add(chunk)
            added = tuple(parts.finish())
        return Read(name, source.file, source.raw_source, content.octets, content.digest, added)

    def _chunks(self, file: str, pieces: Iterator[bytes]) -> Iterator[Chunk]:
        """Cut what a file holds; with a codec each chunk is a frame. Raises FileRefused for what is none."""
        if self.codec is None:
            yield from cut(pieces, self.chunk_bytes)
            return
        try:
            for chunk in cut(decoded(pieces, self.codec.name, self.codec.most_octets), self.chunk_bytes):
                yield replace(chunk, octets=encode(chunk.octets, self.codec.name))
        except CodecError as error:
            raise FileRefused(
                f"{file}: {error}", "Nothing of it is in the depot. See [format] codec and max_decoded_bytes."
            ) from error

    def _discard(self, future: Future[Read]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.depot.discard(future.result())


def _first(waiting: deque[Future[Read]]) -> Read:
    """Return what was read first; whoever is interrupted meanwhile leaves it among those that wait."""
    read = waiting[0].result()
    waiting.popleft()
    return read

"""Raw files into a raw depot: some are read at a time, and committed in the order in which they were named.

The order of the depot's versions decides what is late, so what is read ahead waits for its turn. A file is read once,
and comes in portions of `commit_bytes`; after a crash it goes on behind those that are there, if it begins as they do.
Whether the depot has its content is known at the end of it. So a file that begins as another one that came in waits
with all its portions till then, and what was written is removed when it is the same. A file whose raw source the depot
has can add nothing, and is only hashed, or not even read when its length says that it is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from windrow.delta.creation import create_raw_depot
from windrow.errors import FileRefused
from windrow.ingest.raw_files.content import STANDARD_INPUT, size_of
from windrow.ingest.raw_files.depot import RawDepot
from windrow.ingest.raw_files.portion import Portion
from windrow.ingest.raw_files.reading import Coded, Passed, Progress, Reading, Source
from windrow.model.chunks import CHUNK_BYTES

READERS = 2
COMMIT_BYTES = 268_435_456


@dataclass(frozen=True, slots=True)
class RawIngested:
    """What became of one file: the bytes and chunks it added, in how many versions, up to which depot version.

    `before` bytes of it were there; a `known` file added none.
    """

    file: str
    raw_source: str
    bytes: int
    chunks: int
    depot_version: int
    known: bool
    versions: int = 1
    before: int = 0


def ingest(  # noqa: PLR0913 - what may be chosen
    location: str,
    files: Sequence[str],
    now: Callable[[], int],
    keep: str = "90d",
    *,
    raw_source: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    commit_bytes: int = COMMIT_BYTES,
    readers: int = READERS,
    codec: Coded | None = None,
    progress: Progress = lambda done, total: None,
) -> Iterator[RawIngested]:
    """Append files to the raw depot at a path, and yield what became of each.

    A raw source is the path as given, or `raw_source` for one file; `-` is standard input. `now` is the wall clock in
    microseconds: the chunks of a file have the time at which its reading began. `readers` files are read at a time.
    A commit adds `commit_bytes` of a file at most, or one chunk. With a `codec` a file is one or more frames of it, and
    so is each chunk; bytes are counted as they are decoded.
    `progress` is told by any of them how many bytes were read, and of how many. Raises FileRefused.
    """
    sources = _sources(files, raw_source)
    create_raw_depot(location, keep)
    depot = RawDepot(location)
    for one in sources:
        depot.require_same(one.file, one.raw_source, one.byte_count)
    reading = Reading(depot, now, chunk_bytes, commit_bytes, codec, Passed(sources, progress))
    with closing(reading.in_order(sources, readers)) as portions:
        for _ in sources:
            yield _committed(depot, portions)


def _committed(depot: RawDepot, portions: Iterator[Portion]) -> RawIngested:
    """Commit the portions of the next file, each as soon as it is known that its content is new."""
    held: list[Portion] = []
    added: list[Portion] = []
    version, before = 0, None
    try:
        for latest in portions:
            held.append(latest)
            before = latest.start if before is None else before
            while held and (done := depot.commit(held[0], latest)) is not None:
                version, known = done
                if not known:
                    added.append(held[0])
                del held[0]
            if latest.last:
                break
    except BaseException:
        for portion in held[1:]:  # the first one is the depot's affair
            depot.discard(portion)
        raise
    return RawIngested(
        latest.file,
        latest.raw_source,
        sum(portion.byte_count - portion.start for portion in added),
        sum(portion.rows for portion in added),
        version,
        known=not added,
        versions=len(added),
        before=before or 0,
    )


def _sources(files: Sequence[str], raw_source: str | None) -> list[Source]:
    if raw_source is not None and len(files) != 1:
        raise FileRefused("--raw-source names one file", "Ingest the files one by one, or by their paths, without it.")
    if raw_source is None and STANDARD_INPUT in files:
        raise FileRefused("standard input has no name", "Say what it is: --raw-source NAME.")
    return [Source(file, _named(file if raw_source is None else raw_source), size_of(file)) for file in files]


def _named(raw_source: str) -> str:
    try:
        encoded = raw_source.encode()
    except UnicodeEncodeError as error:
        raise FileRefused(f"the name of {raw_source!a} is no UTF-8", "Give it one: --raw-source NAME.") from error
    if not encoded:
        raise FileRefused("a raw source has a name", "Say --raw-source NAME.")
    return raw_source

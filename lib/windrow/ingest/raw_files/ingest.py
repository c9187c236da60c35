"""Ingest raw files into a raw depot: read several at a time, and commit them in the order in which they were given.

The order of depot versions decides which messages are late, so a file that was read ahead waits for its turn. A file is
read once and committed in portions of `max_commit_bytes`. After a crash it resumes after the committed portions if the
file still begins with them. Only the end of a file shows whether the depot has its content already. So if a file begins
like an ingested one, all its portions wait until then, and are removed if the content is the same. If the depot has the
whole raw source, the file can add nothing: it is only hashed, or refused unread if its size differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from windrow.delta.creation import create_depot
from windrow.errors import InputFileError
from windrow.formats.settings import FormatSettings
from windrow.ingest.content import STANDARD_INPUT, ByteCounter, Progress, file_size
from windrow.ingest.raw_files.depot import FilePart, RawDepot
from windrow.ingest.raw_files.reading import RawFileReader, SourceFile
from windrow.model.chunks import CHUNK_BYTES

READERS = 2
COMMIT_BYTES = 268_435_456


@dataclass(frozen=True, slots=True)
class RawIngestResult:
    """The result for one file: the bytes and chunks it added, in how many commits, and the last depot version.

    `resumed_at_byte` bytes of it were in the depot already; an `already_ingested` file adds none.
    """

    file: str
    raw_source: str
    byte_count: int
    chunk_count: int
    depot_version: int
    already_ingested: bool
    version_count: int = 1
    resumed_at_byte: int = 0


def ingest(  # noqa: PLR0913 - the options of the command
    location: str,
    files: Sequence[str],
    now: Callable[[], int],
    retention: str = "90d",
    *,
    raw_source: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    max_commit_bytes: int = COMMIT_BYTES,
    readers: int = READERS,
    part: FormatSettings | None = None,
    progress: Progress = lambda done, total: None,
) -> Iterator[RawIngestResult]:
    """Append files to the raw depot at a path, and yield the result for each.

    The raw source is the path as given, or `raw_source` for a single file; `-` is standard input. `now` is the wall
    clock in microseconds; all chunks of a file carry the time at which reading began. `readers` files are read at a
    time. A commit adds at most `max_commit_bytes` of a file, but at least one chunk. With a codec in the format, a file
    is one or more compressed frames, and so is each chunk; bytes are counted after decompression. `progress` is called,
    from any thread, with the bytes read so far and the total, None if that is unknown. Raises InputFileError.
    """
    sources = _sources(files, raw_source)
    create_depot(location, None, retention)
    depot = RawDepot(location)
    for source in sources:
        depot.require_same(source.file, source.raw_source, source.byte_count)
    passed = ByteCounter([source.byte_count for source in sources], progress)
    reading = RawFileReader(depot, now, chunk_bytes, max_commit_bytes, part or FormatSettings(), passed)
    with closing(reading.in_order(sources, readers)) as portions:
        for _ in sources:
            yield _commit_portions(depot, portions)


def _commit_portions(depot: RawDepot, portions: Iterator[FilePart]) -> RawIngestResult:
    """Commit the portions of the next file, each as soon as its content is known to be new."""
    contents: list[FilePart] = []
    added: list[FilePart] = []
    version, before = 0, None
    try:
        for latest in portions:
            contents.append(latest)
            before = latest.start if before is None else before
            while contents and (committed := depot.commit(contents[0], latest)) is not None:
                version, known = committed
                if not known:
                    added.append(contents[0])
                del contents[0]
            if latest.last:
                break
    except BaseException:
        for portion in contents[1:]:  # `commit` handles the first one
            depot.discard(portion)
        raise
    return RawIngestResult(
        latest.file,
        latest.raw_source,
        sum(portion.byte_count - portion.start for portion in added),
        sum(portion.rows for portion in added),
        version,
        already_ingested=not added,
        version_count=len(added),
        resumed_at_byte=before or 0,
    )


def _sources(files: Sequence[str], raw_source: str | None) -> list[SourceFile]:
    if raw_source is not None and len(files) != 1:
        raise InputFileError(
            "--raw-source needs a single file", "Ingest the files one by one, or leave the option out."
        )
    if raw_source is None and STANDARD_INPUT in files:
        raise InputFileError("standard input has no name", "Give it one: --raw-source NAME.")
    for file in files:
        if "://" in file:
            raise InputFileError(f"{file} is not a local file", "Pipe it in: windrow ingest - --raw-source NAME.")
    return [
        SourceFile(file, _source_text(file if raw_source is None else raw_source), file_size(file, InputFileError))
        for file in files
    ]


def _source_text(raw_source: str) -> str:
    try:
        encoded = raw_source.encode()
    except UnicodeEncodeError as error:
        raise InputFileError(f"the name {raw_source!a} is not UTF-8", "Give another one: --raw-source NAME.") from error
    if not encoded:
        raise InputFileError("the name of the raw source is empty", "Use --raw-source NAME.")
    return raw_source

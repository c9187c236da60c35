"""The stage in two passes, for chunks that lie apart: parallel within one source, and no byte is framed twice.

The first pass summarises each chunk by itself, wherever it lies: what it does to the framing from every state. With
the summaries the driver knows in which state each chunk really begins, so the second pass parses in each chunk its
*body*, the records that lie in it as a whole. What is left of a chunk, before its first record and behind its last,
comes to the driver. There it is a source like any other, much shorter, with only the records that lie in several
chunks.

What is not plain (chunks that have to wait, are repeated or in conflict; a record that is too long) is left to the
stage as it is; so a source has the same records whichever way it goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from windrow.errors import require
from windrow.formats.automaton import Summary, scan
from windrow.formats.format import Format
from windrow.formats.framing import RECORD, DelimitedFraming
from windrow.formats.raw.arrived import Arrived
from windrow.formats.raw.partial import sources_of
from windrow.formats.raw.queue import Chunk, Taken
from windrow.formats.raw.segment import BYTE_ORDER_MARK, Segment, segments
from windrow.formats.raw.source import Source
from windrow.formats.raw.stage import Staged, staged

PLAIN = pa.list_(pa.int64())
SUMMARIES = pa.schema(
    [
        ("raw_source", pa.string()), ("sequence", pa.int64()), ("last", pa.bool_()), ("received_at", pa.int64()),
        ("version", pa.int64()), ("digest", pa.binary()), ("mark", pa.int64()), ("after", PLAIN), ("first", PLAIN),
        ("final", PLAIN), ("head", pa.binary()),
    ]
)  # fmt: skip


class Body(NamedTuple):
    """Where the whole records of a chunk begin and end, in which version they are complete, under which header."""

    begin: int
    end: int
    version: int
    header: bytes | None


class Part(NamedTuple):
    """A chunk apart: the records of its body, and the bytes before and behind it with where these are in the chunk.

    `oversize` says that a record of the body is too long, so that framing goes another way.
    """

    source: str
    chunk: Chunk
    segment: Segment | None
    rests: list[tuple[int, bytes]]
    oversize: bool


@dataclass(frozen=True, slots=True)
class Course:
    """A source that goes the plain way: its chunks in order with the bodies of those that have one."""

    source: Source
    taken: list[Taken]
    bodies: dict[tuple[int, int], Body]  # by number and the version that brought it


def can_spread(format_: Format) -> bool:
    """Tell whether chunks of a format can be summarised each by itself."""
    return isinstance(format_.framing, DelimitedFraming)


def _delimited(format_: Format) -> DelimitedFraming:
    require(isinstance(format_.framing, DelimitedFraming), "the framing of the format is an automaton")
    return cast("DelimitedFraming", format_.framing)


def summarise(rows: pa.Table, format_: Format) -> pa.Table:
    """Return a row of `SUMMARIES` for each row of a raw depot that is a chunk; NULL what cannot be told of one."""
    found = [
        _summary(name, chunk, format_)
        for name, versions in Arrived.of(rows, format_.decode).chunks.items()
        for chunks in versions.values()
        for chunk in chunks
    ]
    return pa.Table.from_pylist(found, SUMMARIES)


def _summary(name: str, chunk: Chunk, format_: Format) -> dict[str, Any]:
    row: dict[str, Any] = {
        "raw_source": name,
        "sequence": chunk.number,
        "last": chunk.last,
        "received_at": chunk.received_at,
        "version": chunk.version,
        "digest": chunk.digest,
    }
    mark = _mark(chunk, format_)
    if chunk.broken or mark is None:
        return row
    framing = _delimited(format_)
    summary = framing.automaton.summary(np.frombuffer(chunk.content, np.uint8)[mark:])
    first, final = (np.where(at < 0, at, at + mark).tolist() for at in (summary.first, summary.last))
    head = bytes(chunk.content[: max(first[0], 0)]) if chunk.number == 1 and format_.header is not None else None
    return row | {"mark": mark, "after": summary.after.tolist(), "first": first, "final": final, "head": head}


def _mark(chunk: Chunk, format_: Format) -> int | None:
    """Return how many bytes of a byte-order mark a chunk begins with, None where the next one would tell."""
    if chunk.number != 1 or not format_.text:
        return 0
    begin = bytes(chunk.content[: len(BYTE_ORDER_MARK)])
    if begin == BYTE_ORDER_MARK:
        return len(BYTE_ORDER_MARK)
    short = len(begin) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(begin)
    return None if short and not chunk.last else 0


def course(source: Source, rows: list[Mapping[str, Any]], format_: Format) -> Course | None:
    """Return how a source goes on with chunks that were summarised, None where it must go the other way.

    The source's queue has gone on afterwards.
    """
    framing = _delimited(format_)
    if source.queue.held or source.state < 0 or (source.rest and source.fingerprint != format_.fingerprint):
        return None
    told = {(row["sequence"], row["version"]): row for row in rows}
    if len(told) < len(rows) or any(row["after"] is None for row in rows):
        return None
    taken = _taken(source, rows, format_)
    if taken is None:
        return None
    steps = [told[step.chunk.number, step.chunk.version] for step in taken]
    header = _header(source, steps, format_)
    if header is None and format_.header is not None:
        return None
    states = scan([_of(row) for row in steps], source.state)
    bodies: dict[tuple[int, int], Body] = {}
    length = len(source.rest)
    for step, row, state in zip(taken, steps, states, strict=False):
        first, final = row["first"][state], row["final"][state]
        length += step.chunk.size if first < 0 else first
        if length > framing.max_record_bytes:
            return None
        if first >= 0:
            bodies[step.chunk.number, step.chunk.version] = Body(first, final, step.version, header)
            length = step.chunk.size - final
    return None if length > framing.max_record_bytes else Course(source, taken, bodies)


def _taken(source: Source, rows: list[Mapping[str, Any]], format_: Format) -> list[Taken] | None:
    """Take the chunks; None unless each is taken, and none is left that waits."""
    taken: list[Taken] = []
    for version in sorted({row["version"] for row in rows}):
        chunks = [
            Chunk(row["sequence"], b"", row["last"], row["received_at"], version, row["digest"])
            for row in rows
            if row["version"] == version
        ]
        for step in source.queue.take(chunks, format_.max_held_bytes, format_.remembered_chunks):
            if not isinstance(step, Taken):
                return None
            taken.append(step)
    return None if source.queue.held or not taken else taken


def _header(source: Source, steps: list[Mapping[str, Any]], format_: Format) -> bytes | None:
    """Return the header of a source, None where it is not in the first chunk as a whole."""
    if format_.header is None or source.header is not None:
        return source.header
    head, mark = steps[0]["head"], steps[0]["mark"]
    if not head or source.rest:
        return None
    buffer = np.frombuffer(head, np.uint8)
    begin, end = format_.framing.content(buffer, np.array([mark]), np.array([len(head)]))
    return buffer[begin[0] : end[0]].tobytes()


def _of(row: Mapping[str, Any]) -> Summary:
    after, first, final = (np.array(row[name], np.int64) for name in ("after", "first", "final"))
    return Summary(0, after, first, final)


def parted(rows: pa.Table, planned: Mapping[str, Mapping[tuple[int, int], Body]], format_: Format) -> Iterator[Part]:
    """Yield the parts of chunks whose bodies are planned."""
    for name, versions in Arrived.of(rows, format_.decode).chunks.items():
        of = planned.get(name)
        if of is None:
            continue
        for chunks in versions.values():
            for chunk in chunks:
                yield _part(name, chunk, of.get((chunk.number, chunk.version)), format_)


def _part(name: str, chunk: Chunk, body: Body | None, format_: Format) -> Part:
    if body is None:
        return Part(name, chunk, None, [(0, bytes(chunk.content))], oversize=False)
    framing = _delimited(format_)
    buffer = np.frombuffer(chunk.content, np.uint8)[body.begin : body.end]
    found = framing.automaton.follow(buffer, 0, 0, 0, framing.max_record_bytes)
    rests = [(0, bytes(chunk.content[: body.begin])), (body.end, bytes(chunk.content[body.end :]))]
    ends = found.ends
    segment = Segment(
        source=name,
        buffer=buffer,
        pieces=np.array([[0, chunk.number, body.begin, chunk.received_at, body.version]], np.int64),
        begin=np.append(0, ends)[:-1],
        end=ends,
        what=np.full(ends.size, RECORD, np.int64),
        version=np.full(ends.size, body.version, np.int64),
        header=-1,
        columns=body.header,
        mark=0,
    )
    return Part(name, chunk, segment, rests, oversize=found.at < len(buffer))


def rejoined(taken: list[Taken], rests: Mapping[int, list[tuple[int, bytes]]]) -> list[Taken]:
    """Return the chunks of a course without their bodies: what is left of each, by its number."""
    found = []
    for step in taken:
        parts = sorted(rests[step.chunk.number])
        # guard: second-pass-whole
        require(bool(parts), f"chunk {step.chunk.number} came in the second pass as in the first")
        for at, (offset, content) in enumerate(parts):
            last = step.chunk.last and at == len(parts) - 1
            found.append(step._replace(chunk=step.chunk._replace(content=content, offset=offset, last=last)))
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """Which sources go the plain way, and which rows have to come to the driver: those of all others."""

    courses: dict[str, Course]
    others: frozenset[str]
    kept: int  # bytes that the plain sources had kept

    @classmethod
    def of(cls, summaries: pa.Table, partial: pa.Table, format_: Format, without: Collection[str] = ()) -> Plan:
        """Plan the second pass; sources in `without` go to the driver."""
        known, rows = sources_of(partial), defaultdict(list)
        for row in summaries.to_pylist():
            rows[row["raw_source"]].append(row)
        courses: dict[str, Course] = {}
        kept = 0
        for name, own in rows.items():
            source = known.get(name) or Source(name)
            before = source.byte_count
            found = None if name in without else course(source, own, format_)
            if found is not None:
                courses[name] = found
                kept += before
        return cls(courses, frozenset(rows.keys() - courses.keys()), kept)

    @property
    def bodies(self) -> dict[str, dict[tuple[int, int], Body]]:
        """Return the bodies of each source."""
        return {name: found.bodies for name, found in self.courses.items()}

    @property
    def byte_count(self) -> int:
        """Return how many bytes the bodies have."""
        return sum(body.end - body.begin for bodies in self.bodies.values() for body in bodies.values())

    def finish(
        self, rests: Mapping[str, Mapping[int, list[tuple[int, bytes]]]], partial: pa.Table, format_: Format
    ) -> Staged:
        """Return what becomes of all that lies in several chunks, and of the sources; bodies are not among it."""
        framed: list[Segment] = []
        read = 0
        for name, found in self.courses.items():
            taken = rejoined(found.taken, rests[name])
            read += sum(len(step.chunk.content) for step in taken)
            framed += segments(found.source, taken, format_)
        sources = [found.source for found in self.courses.values()]
        return staged(framed, [], sources, partial, format_, read, self.kept)

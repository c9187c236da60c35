"""The stage in two passes, for chunks on different executors: parallel within one source, and no byte is framed twice.

The first pass summarises each chunk on its own: what it does to the framing from every state. From the summaries the
driver finds the state in which each chunk really begins. The second pass then parses the *body* of each chunk: the
records that lie entirely in it. The *rests*, before the first record and after the last one, go to the driver. Together
they form a source like any other, but much shorter, with only the records that span several chunks.

Sources with complications (chunks that must wait, are repeated or in conflict; a record that is too long or malformed)
go through the ordinary stage. The records are the same either way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from windrow.columnar.compiled import ByteArray, Ints
from windrow.errors import ensure
from windrow.formats.automaton import Automaton
from windrow.formats.codecs import Codec, decode_whole
from windrow.formats.format import Format
from windrow.formats.framing import RECORD, DelimitedFraming, FrameResult
from windrow.formats.raw.arrived import chunks_by_source
from windrow.formats.raw.parsing import parse
from windrow.formats.raw.queue import QueuedChunk, ReleasedChunk
from windrow.formats.raw.segment import BYTE_ORDER_MARK, Segment, mark_size, segments, steps_of
from windrow.formats.raw.source import RawSourceState, sources_of
from windrow.formats.raw.spans import RecordSpans
from windrow.formats.raw.stage import REJECTS, FramedChunks, StageResult, fields_of, rejects_of, stage_chunks
from windrow.model.commits import VERSION

PLAIN = pa.list_(pa.int64())
Bodies = Mapping[str, Mapping[tuple[int, int], "Body"]]  # by source; by number and the version that brought the chunk
SUMMARIES = pa.schema(
    [
        ("raw_source", pa.string()), ("sequence", pa.int64()), ("last", pa.bool_()), ("received_at", pa.int64()),
        ("version", pa.int64()), ("digest", pa.binary()), ("size", pa.int64()), ("excess", pa.int64()),
        ("mark", pa.int64()), ("after", PLAIN), ("first", PLAIN),
        ("final", PLAIN), ("longest", PLAIN), ("head", pa.binary()),
    ]
)  # fmt: skip


RESTS = pa.schema(
    [("raw_source", pa.string()), ("chunk", pa.int64()), ("offset", pa.int64()), ("content", pa.binary())]
)


class Body(NamedTuple):
    """Where the whole records of a chunk begin and end, the version that completes them, and their header."""

    start: int
    end: int
    version: int
    header: bytes | None


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source that is parsed in two passes: its chunks in order, and their bodies."""

    source: RawSourceState
    taken: list[ReleasedChunk]
    bodies: dict[tuple[int, int], Body]  # by chunk number and the version that brought it


def can_spread(format_: Format) -> bool:
    """Tell whether the chunks of a format can be summarised independently."""
    framing = format_.framing
    return isinstance(framing, DelimitedFraming) and isinstance(framing.automaton, Automaton)


def _framing_of(format_: Format) -> DelimitedFraming:
    ensure(can_spread(format_), "the framing of the format is an automaton")
    return cast("DelimitedFraming", format_.framing)


def summarise_chunks(rows: pa.Table, format_: Format) -> pa.Table:
    """Return a row of `SUMMARIES` for each chunk in rows of a raw depot, NULL where a chunk cannot be summarised."""
    summaries = [_summary(name, chunk, format_) for name, chunks in chunks_by_source(rows).items() for chunk in chunks]
    return pa.Table.from_pylist(summaries, SUMMARIES)


def _summary(name: str, chunk: QueuedChunk, format_: Format) -> dict[str, Any]:
    row: dict[str, Any] = {
        "raw_source": name,
        "sequence": chunk.number,
        "last": chunk.last,
        "received_at": chunk.received_at,
        "version": chunk.version,
        "digest": chunk.digest,
    }
    whole = _decode(chunk, format_)
    if whole is None:  # a frame of the codec continues in another chunk, or is damaged
        return row
    content, excess = whole
    begins = chunk.number == 1 and format_.text
    mark = mark_size(bytes(content[: len(BYTE_ORDER_MARK)]), chunk.last) if begins else 0
    if mark < 0:  # only the next chunk can tell
        return row
    automaton = cast("Automaton", _framing_of(format_).automaton)
    summary = automaton.summary(np.frombuffer(content, np.uint8)[mark:])
    first, final = ([at + mark if at >= 0 else at for at in ends] for ends in (summary.first, summary.last))
    head = bytes(content[: max(first[0], 0)]) if chunk.number == 1 and format_.header is not None else None
    totals = {"after": summary.after, "first": first, "final": final, "longest": summary.longest}
    return row | totals | {"mark": mark, "head": head, "size": len(content), "excess": excess}


def _decode(chunk: QueuedChunk, format_: Format) -> tuple[bytes | memoryview, int] | None:
    """Return the content of a chunk, and by how many bytes frames exceed their contents; None if it is not whole."""
    if format_.codec == "none":
        return chunk.content, 0
    return decode_whole(bytes(chunk.content), cast("Codec", format_.codec), format_.limits.max_decoded_bytes)


def plan_source(source: RawSourceState, rows: list[Mapping[str, Any]], format_: Format) -> SourcePlan | None:
    """Plan the second pass for a source from its summaries, None if it must go through the ordinary stage.

    This advances the queue of the source.
    """
    framing = _framing_of(format_)
    waiting = source.queue.waiting or source.encoded or source.state < 0
    if waiting or (source.tail and source.fingerprint != format_.fingerprint):
        return None
    by_chunk = {(row["sequence"], row["version"]): row for row in rows}
    if len(by_chunk) < len(rows) or any(row["after"] is None for row in rows):
        return None
    taken = _take_chunks(source, rows, format_)
    if taken is None:
        return None
    steps = [by_chunk[step.chunk.number, step.chunk.version] for step in taken]
    header = _header(source, steps, format_)
    if header is None and format_.header is not None:
        return None
    bodies: dict[tuple[int, int], Body] = {}
    state, length = source.state, len(source.tail)
    for step, row in zip(taken, steps, strict=True):
        first, final = row["first"][state], row["final"][state]
        length += row["size"] if first < 0 else first
        after = row["after"][state]
        if max(length, row["longest"][state]) > framing.max_record_bytes or after == framing.automaton.malformed:
            # guard: oversize-body
            return None
        if first >= 0:
            bodies[step.chunk.number, step.chunk.version] = Body(first, final, step.version, header)
            length = row["size"] - final
        state = after
    return None if length > framing.max_record_bytes else SourcePlan(source, taken, bodies)


def _take_chunks(source: RawSourceState, rows: list[Mapping[str, Any]], format_: Format) -> list[ReleasedChunk] | None:
    """Pass the chunks through the queue; None unless it releases all and holds none."""
    names, limits = ("last", "received_at", "version", "digest"), format_.limits
    chunks = (QueuedChunk(row["sequence"], b"", *(row[name] for name in names)) for row in rows)
    steps = list(source.queue.take(chunks, limits.max_pending_bytes))
    taken = [step for step in steps if isinstance(step, ReleasedChunk)]
    return None if source.queue.waiting or not taken or len(taken) < len(steps) else taken


def _header(source: RawSourceState, steps: list[Mapping[str, Any]], format_: Format) -> bytes | None:
    """Return the header of a source, None if the first chunk does not contain all of it."""
    if format_.header is None or source.header is not None:
        return source.header
    head, mark = steps[0]["head"], steps[0]["mark"]
    if not head or source.tail:
        return None
    buffer = np.frombuffer(head, np.uint8)
    start, end = format_.framing.content(buffer, np.array([mark]), np.array([len(head)]))
    return buffer[start[0] : end[0]].tobytes() or None


def cut_chunks(
    rows: pa.Table, planned: Bodies, format_: Format
) -> Iterator[tuple[Segment | None, list[dict[str, Any]]]]:
    """Cut the chunks of planned sources: yield the records of each body, and the bytes outside it as `RESTS`."""
    framing = _framing_of(format_)
    for name, chunks in chunks_by_source(rows).items():
        for chunk in chunks if name in planned else ():
            whole = _decode(chunk, format_)
            ensure(whole is not None, "a chunk has whole frames in both passes")
            content = whole[0] if whole else b""
            body = planned[name].get((chunk.number, chunk.version))
            rest = {"raw_source": name, "chunk": chunk.number}
            if body is None:
                yield None, [rest | {"offset": 0, "content": bytes(content)}]
                continue
            buffer = np.frombuffer(content, np.uint8)[body.start : body.end]
            run = framing.automaton.follow(buffer, 0, 0, 0, framing.max_record_bytes)
            outside = ((0, content[: body.start]), (body.end, content[body.end :]))
            rests = [rest | {"offset": offset, "content": bytes(part)} for offset, part in outside]
            yield _segment(name, chunk, body, buffer, run.ends), rests


def _segment(name: str, chunk: QueuedChunk, body: Body, buffer: ByteArray, ends: Ints) -> Segment:
    framed = FrameResult(np.append(0, ends)[:-1], ends, ends, np.full_like(ends, RECORD), len(buffer), 0)
    pieces = np.array([[0, chunk.number, body.start, chunk.received_at, body.version]], np.int64)
    version = np.full(ends.size, body.version, np.int64)
    return Segment(name, buffer, pieces, framed, version, body.header)


def parsed_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of the result of the second pass, for records with these columns.

    Each row is a record, a reject or a rest, because an executor can return only one kind of row. Columns are named by
    field number, because fields may have any name.
    """
    fields = [(number_name(number), type_) for number, type_ in enumerate(columns.types)]
    return pa.schema(
        [*fields, ("version", pa.int64()), ("reject", pa.struct(list(REJECTS))), ("rest", pa.struct(list(RESTS)))]
    )


def number_name(number: int) -> str:
    """Return the column name of a field."""
    return f"field_{number}"


def parse_bodies(rows: pa.Table, bodies: Bodies, format_: Format, columns: pa.Schema) -> pa.Table:
    """Parse the bodies of chunks, each decoded and framed once; return the columns of `parsed_schema`."""
    cut = list(cut_chunks(rows, bodies, format_))
    values = parse(RecordSpans.of([segment for segment, _ in cut if segment is not None]), format_)
    fields, rejects = fields_of(values), rejects_of(values)
    rests = pa.Table.from_pylist([rest for _, outside in cut for rest in outside], RESTS)
    named = fields.select(columns.names).cast(columns, safe=False)
    records = named.rename_columns([number_name(number) for number in range(len(columns))])
    schema = parsed_schema(columns)
    kinds = [
        {name: records[name] for name in records.column_names} | {"version": fields[VERSION]},
        {"version": rejects["version"], "reject": rejects.to_struct_array()},
        {"rest": rests.to_struct_array()},
    ]
    return pa.concat_tables(map(pa.table, kinds), promote_options="default").select(schema.names).cast(schema)


def rejoin(taken: list[ReleasedChunk], rests: Mapping[int, list[tuple[int, bytes]]]) -> list[ReleasedChunk]:
    """Return chunks in order without their bodies, given the rests by chunk number."""
    pieces = []
    for step in taken:
        parts = sorted(rests[step.chunk.number])
        # guard: second-pass-whole
        ensure(bool(parts), f"chunk {step.chunk.number} came in the second pass as in the first")
        for at, (offset, content) in enumerate(parts):
            last = step.chunk.last and at == len(parts) - 1
            pieces.append(step._replace(chunk=step.chunk._replace(content=content, offset=offset, last=last)))
    return pieces


@dataclass(frozen=True, slots=True)
class ParsePlan:
    """The sources that are parsed in two passes, and the `others`, whose rows must go to the driver."""

    sources: dict[str, SourcePlan]
    others: frozenset[str]
    kept: int  # bytes that the planned sources had kept before
    excess: int  # by how many bytes the frames of their chunks exceed their contents

    @classmethod
    def of(cls, summaries: pa.Table, partial: pa.Table, format_: Format) -> ParsePlan:
        """Plan the second pass from the summaries."""
        known, rows = sources_of(partial), defaultdict(list)
        for row in summaries.to_pylist():
            rows[row["raw_source"]].append(row)
        sources: dict[str, SourcePlan] = {}
        kept = excess = 0
        for name, own in rows.items():
            source = known.get(name) or RawSourceState(name)
            before = source.byte_count
            source_plan = plan_source(source, own, format_)
            if source_plan is not None:
                sources[name] = source_plan
                kept += before
                excess += sum(row["excess"] for row in own)
        return cls(sources, frozenset(rows.keys() - sources.keys()), kept, excess)

    @property
    def bodies(self) -> dict[str, dict[tuple[int, int], Body]]:
        """Return the bodies of each source."""
        return {name: source_plan.bodies for name, source_plan in self.sources.items()}

    @property
    def byte_count(self) -> int:
        """Return the number of bytes in all bodies."""
        return sum(body.end - body.start for bodies in self.bodies.values() for body in bodies.values())

    def finish(self, rests: pa.Table, partial: pa.Table, format_: Format) -> StageResult:
        """Parse the records that span several chunks, and update the sources; the bodies are not included.

        `rests` has rows of `RESTS` in any order.
        """
        contents: dict[str, dict[int, list[tuple[int, bytes]]]] = defaultdict(lambda: defaultdict(list))
        for row in rests.to_pylist():
            contents[row["raw_source"]][row["chunk"]].append((row["offset"], row["content"]))
        framed: list[Segment] = []
        read = self.excess
        for name, source_plan in self.sources.items():
            taken = rejoin(source_plan.taken, contents[name])
            read += sum(len(step.chunk.content) for step in taken)
            framed += segments(source_plan.source, steps_of(taken), format_)
        touched = [source_plan.source for source_plan in self.sources.values()]
        return stage_chunks(FramedChunks(framed, [], touched, read, self.kept, self.excess), partial, format_)

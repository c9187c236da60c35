"""The stage before the kernel: turn the chunks of raw sources into the fields of records, and collect the rejects.

It takes the chunks that arrived and the partial rows of the ledger, and returns the records and the changed partial
rows. It is pure. The records of a source depend on nothing but the source's bytes: neither on how they were cut into
chunks nor on microbatches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial as bound
from functools import reduce
from operator import add
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME, run_parallel
from windrow.formats.format import Format
from windrow.formats.installed import OWN
from windrow.formats.raw.arrived import SourceChunks, chunks_by_source, invalid_of
from windrow.formats.raw.decompression import Decompression
from windrow.formats.raw.parsing import RecordValues, parse
from windrow.formats.raw.queue import ChunkGap, RejectedChunk
from windrow.formats.raw.segment import Segment, Step, segments, steps_of
from windrow.formats.raw.source import RawSourceState, changes, sources_of
from windrow.formats.raw.spans import RecordSpans
from windrow.model.commits import VERSION

REJECTS = pa.schema(
    [
        ("raw_source", pa.string()), ("chunk", pa.int64()), ("offset", pa.int64()), ("received_at", TIME),
        ("version", pa.int64()), ("arrived_in", pa.int64()), ("ordinal", pa.int64()), ("reason", pa.string()),
        ("detail", pa.string()), ("bytes", pa.int64()), ("content", pa.binary()), ("field", pa.string()),
    ]
)  # fmt: skip
REPEATED = "format_repeated"
PARALLEL_BYTES = 2**22  # for fewer, threads do not pay off


@dataclass(frozen=True, slots=True)
class ByteCounts:
    """Numbers of bytes of a raw depot that a microbatch read: read = framed + rejected + repeated + kept.

    `framed` bytes are in good records, headers and blank lines. `repeated` bytes are in chunks that arrived before.
    `kept` is the change in the number of bytes in partial rows, which may be negative.
    """

    read: int
    framed: int
    rejected: int
    repeated: int
    kept: int

    def __add__(self, other: ByteCounts) -> ByteCounts:
        """Return the sum of both."""
        return ByteCounts(*(left + right for left, right in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of the stage.

    `fields` has the rows of good records: their fields, `spans.PLACE`, and the depot version that completed each
    (`commits.VERSION`). `rejects` (`REJECTS`) has the bad records and chunks: a record has an offset, a chunk has the
    version it `arrived_in` and an `ordinal` within that. `partial` are the changed rows of the ledger, with `known`.
    """

    fields: pa.Table
    rejects: pa.Table
    partial: pa.Table
    volume: ByteCounts

    def __add__(self, other: StageResult) -> StageResult:
        """Combine the results of different sources."""
        return StageResult(
            pa.concat_tables([self.fields, other.fields]),
            pa.concat_tables([self.rejects, other.rejects]),
            pa.concat_tables([self.partial, other.partial]),
            self.volume + other.volume,
        )


@dataclass(frozen=True, slots=True)
class FramedChunks:
    """The segments of chunks that arrived, and the `rejects` among the chunks.

    `touched` are the sources afterwards. `read` counts the bytes of the chunks, `kept_before` those already kept. For
    compressed chunks the content counts, or the frame if that is longer: by `excess` bytes in all.
    """

    segments: Sequence[Segment]
    rejects: Sequence[Mapping[str, Any]]
    touched: Collection[RawSourceState]
    read: int
    kept_before: int
    excess: int = 0


def stage(rows: pa.Table, partial: pa.Table, format_: Format) -> StageResult:
    """Turn rows of a raw depot (`chunks.RAW` and `version`) into records, given the partial rows of the ledger."""
    return stage_chunks(frame_chunks(rows, partial, format_), partial, format_)


def frame_chunks(rows: pa.Table, partial: pa.Table, format_: Format) -> FramedChunks:
    """Frame the chunks in rows, each source after the bytes kept in the ledger."""
    arrived = chunks_by_source(rows)
    sources = sources_of(partial, arrived.keys())
    touched = {name: sources.get(name) or RawSourceState(name) for name in arrived}
    kept = sum(source.byte_count for source in touched.values())
    rejects = invalid_of(rows)
    read = sum(reject["bytes"] for reject in rejects) + sum(chunks.byte_count for chunks in arrived.values())
    result: list[Segment] = []
    excess = 0
    for name, chunks in arrived.items():
        source = touched[name]
        steps, refused = release_chunks(source, chunks, format_)
        rejects += refused
        if format_.codec != "none" or source.encoded:
            decompression = Decompression.of(source, steps, format_)
            steps, read, excess = decompression.steps, read + decompression.grown, excess + decompression.excess
            rejects += decompression.rejects
        result += segments(source, steps, format_)
    return FramedChunks(result, rejects, touched.values(), read, kept, excess)


def release_chunks(
    source: RawSourceState, chunks: SourceChunks, format_: Format
) -> tuple[list[Step], list[dict[str, Any]]]:
    """Let the queue of a source take chunks; return what it releases, and the chunks that it refuses."""
    if chunks.offer_to(source.queue):
        return [chunks.run()], []
    taken = list(source.queue.take(chunks, format_.limits.max_pending_bytes))
    refused = [_refused(source.name, chunk) for chunk in taken if isinstance(chunk, RejectedChunk)]
    return list(steps_of(chunk for chunk in taken if not isinstance(chunk, RejectedChunk))), refused


def give_up_source(name: str, partial: pa.Table, format_: Format, reject: Mapping[str, Any]) -> StageResult:
    """Return the result for a source whose kept bytes nothing will follow, for the reason in `reject`."""
    source = sources_of(partial, [name]).get(name) or RawSourceState(name)
    kept = source.byte_count
    framed = list(segments(source, [ChunkGap(reject["version"])], format_))
    chunks = FramedChunks(framed, [reject], [source], reject["bytes"], kept)
    return stage_chunks(chunks, partial, format_)


def stage_chunks(chunks: FramedChunks, partial: pa.Table, format_: Format) -> StageResult:
    """Parse the records of chunks, and combine them with the refused chunks and the sources' new state.

    Many bytes are parsed on all cores, even those of one source. One thread calls the parser of another package.
    """
    spans = RecordSpans.of(chunks.segments)
    parts = pa.cpu_count() if format_.limits.type in OWN and len(spans.buffer) >= PARALLEL_BYTES else 1
    if parts == 1:
        return _stage_spans(chunks, spans, partial, format_)
    pieces = list(split_spans(chunks, spans, -(-spans.start.size // parts) or 1))
    result = run_parallel([bound(_stage_spans, *piece, partial, format_) for piece in pieces], len(spans.buffer))
    return reduce(add, result)


def stage_in_pieces(chunks: FramedChunks, partial: pa.Table, format_: Format, most: int) -> Iterator[StageResult]:
    """Yield what `_stage_spans` returns for `most` spans at a time; the sum is the same."""
    for piece in split_spans(chunks, RecordSpans.of(chunks.segments), most):
        yield _stage_spans(*piece, partial, format_)


def split_spans(chunks: FramedChunks, spans: RecordSpans, most: int) -> Iterator[tuple[FramedChunks, RecordSpans]]:
    """Yield at most `most` spans at a time; all else of the chunks goes with the first ones."""
    yield chunks, spans.between(0, most)
    for start in range(most, spans.start.size, most):
        yield FramedChunks([], [], [], 0, 0), spans.between(start, start + most)


def _stage_spans(chunks: FramedChunks, spans: RecordSpans, partial: pa.Table, format_: Format) -> StageResult:
    values = parse(spans, format_)
    refused = pa.concat_tables([rejects_of(values), pa.Table.from_pylist(list(chunks.rejects), REJECTS)])
    volume = ByteCounts(
        read=chunks.read,
        framed=_count_framed(values, chunks.segments) + chunks.excess,
        rejected=_bytes(refused, repeated=False),
        repeated=_bytes(refused, repeated=True),
        kept=sum(source.byte_count for source in chunks.touched) - chunks.kept_before,
    )
    return StageResult(fields_of(values), refused, changes(partial, chunks.touched), volume)


def _count_framed(values: RecordValues, segments: Iterable[Segment]) -> int:
    """Count the bytes of good records, headers and byte-order marks."""
    size = values.spans.end - values.spans.start
    bad = values.bad["record"].to_numpy()
    return int(size.sum() - size[bad].sum()) + sum(segment.mark for segment in segments)


def _bytes(rejects: pa.Table, *, repeated: bool) -> int:
    chosen = rejects.filter(pc.equal(pc.equal(rejects["reason"], REPEATED), repeated))
    return int(pc.sum(chosen["bytes"]).as_py() or 0)


def fields_of(values: RecordValues) -> pa.Table:
    """Return the fields of good records, the position of each (`spans.PLACE`), and its version (`VERSION`)."""
    table = values.fields
    for name, column in values.spans.places(values.span).items():
        if name not in table.column_names:
            table = table.append_column(name, column)
    return table.append_column(VERSION, pa.array(values.spans.version[values.span]))


def rejects_of(values: RecordValues) -> pa.Table:
    """Return the bad records as rows of `REJECTS`."""
    spans = values.spans
    span = values.bad["record"].to_numpy()
    places = spans.places(span)
    chunk, offset = (places[name].cast(pa.string()) for name in ("chunk", "offset"))
    why = values.bad["detail"].combine_chunks()
    columns: dict[str, Any] = places | {
        "version": spans.version[span],
        "arrived_in": pa.nulls(span.size, pa.int64()),
        "ordinal": pa.nulls(span.size, pa.int64()),
        "reason": values.bad["reason"],
        "detail": pc.binary_join_element_wise("chunk ", chunk, ", offset ", offset, ": ", why, ""),
        "bytes": spans.end[span] - spans.start[span],
        "content": spans.contents(span),
        "field": values.bad["column"],
    }
    return pa.table({name: columns[name] for name in REJECTS.names}, REJECTS)


def _refused(source: str, refused: RejectedChunk) -> dict[str, Any]:
    chunk = refused.chunk
    return {
        "raw_source": source,
        "chunk": chunk.number,
        "received_at": chunk.received_at,
        "version": refused.version,
        "arrived_in": chunk.version,
        "ordinal": chunk.ordinal,
        "reason": refused.reason,
        "detail": f"chunk {chunk.number}: {refused.detail}",
        "bytes": len(chunk.content),
        "content": None if refused.reason == REPEATED else chunk.content,
    }

"""Sort the rows of a raw depot into chunks, by source and depot version, and rows that are not valid chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import combine_chunks, times_to_numbers, to_numpy
from windrow.columnar.compiled import ByteArray, Flags, Ints
from windrow.formats.raw.checksum import checksums
from windrow.formats.raw.queue import REMEMBERED_CHUNKS, Queue, QueuedChunk
from windrow.formats.raw.segment import ByteRun
from windrow.formats.raw.source import BEGIN, CHUNK, RECEIVED_AT, VERSION
from windrow.formats.raw.spans import number_repeats
from windrow.formats.texts import Texts, gather_bytes
from windrow.model.chunks import FIRST

INVALID = "format_invalid"
GREATEST = 2**63 - 2  # so that the number of the next chunk is a BIGINT, too
REQUIRED = ("raw_source", "sequence", "bytes", "received_at")


@dataclass(frozen=True, slots=True, eq=False)
class SourceChunks:
    """The chunks of a source in the order of versions and numbers, as columns, without an object for each chunk.

    Chunk `i` has the bytes `buffer[bounds[i]:bounds[i + 1]]`. `digest` has two numbers for each (see `queue.DIGEST`).
    If chunks are `in_order`, each number follows the one before, and only the last chunk may end the source.
    """

    buffer: ByteArray
    bounds: Ints
    number: Ints
    received_at: Ints
    version: Ints
    last: Flags
    digest: npt.NDArray[np.uint64]
    in_order: bool

    @property
    def byte_count(self) -> int:
        """Return the number of bytes."""
        return int(self.bounds[-1] - self.bounds[0])

    def offer_to(self, queue: Queue) -> bool:
        """Offer all chunks to a queue at once; return False, with none taken, if it must look at each of them."""
        digests = self.digest[-REMEMBERED_CHUNKS:].tobytes()
        first, count = int(self.number[0]), self.number.size
        return self.in_order and queue.take_run(first, count, bool(self.last[-1]), digests)

    def run(self) -> ByteRun:
        """Return the bytes of all chunks, which are in order."""
        pieces = np.zeros((self.number.size, 5), np.int64)
        pieces[:, BEGIN] = self.bounds[:-1] - self.bounds[0]
        pieces[:, CHUNK], pieces[:, RECEIVED_AT], pieces[:, VERSION] = self.number, self.received_at, self.version
        return ByteRun(self.buffer[self.bounds[0] : self.bounds[-1]], pieces, bool(self.last[-1]))

    def __iter__(self) -> Iterator[QueuedChunk]:
        """Yield each chunk."""
        content = self.buffer.data
        for at in range(self.number.size):
            yield QueuedChunk(
                number=int(self.number[at]),
                content=content[self.bounds[at] : self.bounds[at + 1]],
                last=bool(self.last[at]),
                received_at=int(self.received_at[at]),
                version=int(self.version[at]),
                digest=self.digest[at].tobytes(),
            )


def chunks_by_source(rows: pa.Table) -> dict[str, SourceChunks]:
    """Return the chunks in rows (`RAW` and `version`) by source."""
    good = np.flatnonzero(pc.is_null(faults_of(rows)).to_numpy())
    if not good.size:
        return {}
    sources = combine_chunks(rows["raw_source"]).dictionary_encode()
    columns = [to_numpy(rows[name], 0) for name in ("sequence", "received_at", "version")]
    order = good[np.lexsort((columns[0][good], columns[2][good], to_numpy(sources.indices, 0)[good]))]
    source, number, received_at, version = (column[order] for column in (to_numpy(sources.indices, 0), *columns))
    last = to_numpy(pc.fill_null(rows["last"], False).cast(pa.int8()))[order] > 0
    buffer, bounds = _contents(rows["bytes"], order)
    digest = np.empty((order.size, 2), ">u8")
    digest[:, 0] = 2 * np.diff(bounds) + last + 1
    digest[:, 1] = checksums(buffer, bounds[:-1], bounds[1:])
    begins = np.append(0, np.flatnonzero(source[1:] != source[:-1]) + 1)
    follows = np.append(True, (number[1:] == number[:-1] + 1) & ~last[:-1])
    follows[begins] = True
    in_order = np.logical_and.reduceat(follows, begins)
    names, ends = sources.dictionary, np.append(begins[1:], order.size)
    return {
        name: SourceChunks(
            buffer, bounds[start : end + 1], number[start:end], received_at[start:end], version[start:end],
            last[start:end], digest[start:end], bool(ordered),
        )
        for name, start, end, ordered in zip(
            names.take(pa.array(source[begins])).to_pylist(), begins.tolist(), ends.tolist(), in_order, strict=True
        )
    }  # fmt: skip


def _contents(column: pa.ChunkedArray, order: Ints) -> tuple[ByteArray, Ints]:
    """Return the contents of rows joined, and their bounds; contents that are already adjacent are not copied."""
    texts = Texts.of(combine_chunks(column.cast(pa.large_binary())))  # which may have more than 2 GiB
    return gather_bytes(texts.buffer, texts.start[order], texts.end[order])


def invalid_of(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows that are not chunks, as rows of `stage.REJECTS` with times in microseconds.

    They are numbered within their version, independently of the order of reading.
    """
    by = [(name, "ascending") for name in ("version", "raw_source", "sequence", "received_at")]
    faults = rows.append_column("fault", faults_of(rows))
    bad = times_to_numbers(faults.filter(pc.is_valid(faults["fault"])).sort_by(by))
    ordinals = number_repeats(to_numpy(bad["version"])).tolist()
    return [
        {
            "raw_source": row["raw_source"],
            "chunk": row["sequence"],
            "received_at": row["received_at"],
            "version": row["version"],
            "arrived_in": row["version"],
            "ordinal": ordinal,
            "reason": INVALID,
            "detail": row["fault"],
            "bytes": len(row["bytes"] or b""),
            "content": row["bytes"] or b"",
        }
        for row, ordinal in zip(bad.to_pylist(), ordinals, strict=True)
    ]


def faults_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return for each row why it is not a chunk, NULL for a valid chunk."""
    fault = pa.chunked_array([pa.nulls(rows.num_rows, pa.string())])
    for name in REQUIRED:
        fault = pc.coalesce(fault, pc.if_else(pc.is_null(rows[name]), f"{name} is NULL", None))
    early, late = pc.less(rows["sequence"], FIRST), pc.greater(rows["sequence"], GREATEST)
    fault = pc.coalesce(fault, pc.if_else(early, f"sequence is less than {FIRST}", None))
    return pc.coalesce(fault, pc.if_else(late, f"sequence is more than {GREATEST}", None))

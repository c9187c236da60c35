"""Chunks: the bytes of a raw source, cut into numbered rows of a raw depot.

The cuts have no meaning: a record may span several chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from windrow.columnar.arrow import TIME, to_plain_type

REFUSED = "format_"  # prefix of the reasons for rejected bytes that are not messages
REASONS = (
    "format_cast", "format_codec", "format_columns", "format_conflict", "format_encoding", "format_gap",
    "format_invalid", "format_oversize", "format_repeated", "format_syntax",
)  # fmt: skip
FIRST = 1  # the first number, as for a producer
CHUNK_BYTES = 1_048_576
COMMENT = "Windrow raw depot: chunks of bytes, appended and never changed"
RAW = pa.schema(
    [
        ("raw_source", pa.string()),
        ("sequence", pa.int64()),
        ("bytes", pa.binary()),
        ("last", pa.bool_()),
        ("received_at", TIME),
    ]
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk: its number in its raw source, its bytes, and whether the source ends with it."""

    sequence: int
    content: bytes
    last: bool


def is_raw(schema: pa.Schema) -> bool:
    """Tell whether a table has the columns of a raw depot; it may have others."""
    types = {field.name: to_plain_type(field.type) for field in schema}
    return {field.name: field.type for field in RAW}.items() <= types.items()


def cut(pieces: Iterable[bytes], chunk_bytes: int = CHUNK_BYTES, first: int = FIRST) -> Iterator[Chunk]:
    """Cut bytes, in pieces of any size, into chunks of `chunk_bytes`; the last one is marked, and may be shorter.

    Numbers begin with `first`. An empty source becomes one empty chunk, so every source has a last chunk.
    """
    sequence, previous = first, None
    for piece in _alike(pieces, chunk_bytes):
        if previous is not None:
            yield Chunk(sequence, previous, last=False)
            sequence += 1
        previous = piece
    yield Chunk(sequence, previous or b"", last=True)


def rows(raw_source: str, chunks: Sequence[Chunk], received_at: int) -> pa.Table:
    """Return chunks as rows of a raw depot; `received_at` is in microseconds."""
    columns = [
        pa.array([raw_source] * len(chunks), pa.string()),
        pa.array([chunk.sequence for chunk in chunks], pa.int64()),
        pa.array([chunk.content for chunk in chunks], pa.binary()),
        pa.array([chunk.last for chunk in chunks], pa.bool_()),
        pa.array([received_at] * len(chunks), pa.int64()).cast(TIME),
    ]
    return pa.Table.from_arrays(columns, schema=RAW)


def _alike(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the bytes in pieces of `size`; the last one may be shorter. Pieces of that size pass without a copy."""
    rest = bytearray()
    for piece in pieces:
        if not rest and len(piece) == size:
            yield piece
            continue
        rest += piece
        while len(rest) >= size:
            yield bytes(rest[:size])
            del rest[:size]
    if rest:
        yield bytes(rest)

"""A file on its way through the stage, chunk by chunk, with the place of each reject in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.formats.codecs import CodecError
from windrow.formats.format import Format
from windrow.formats.raw.partial import SCHEMA, sources_of
from windrow.formats.raw.stage import Staged, stage
from windrow.ingest.format_check.content import PIECE_BYTES, Content
from windrow.model import chunks
from windrow.model.chunks import Chunk

NEWLINE = ord("\n")


@dataclass(slots=True)
class Piece:
    """What became of a piece of a file: its rejects in order, and the `first` of them with their place in the file."""

    staged: Staged
    rejects: pa.Table
    first: list[dict[str, Any]]
    header: bytes | None


@dataclass(slots=True)
class Source:
    """What is known between two chunks: where in the file the unfinished record begins, and in which line.

    Of the rejects of a piece `most` are told with their place.
    """

    name: str
    format: Format
    received_at: int
    most: int
    byte_count: int = 0
    begin: int = 0
    line: int = 1
    rest: bytes = b""
    partial: pa.Table = field(default_factory=SCHEMA.empty_table)

    def pieces(self, content: Content) -> Iterator[Piece]:
        """Yield what becomes of the bytes of a file, as those of a raw source of one file."""
        for chunk in chunks.cut(content.pieces(), PIECE_BYTES):
            if content.broken is None:
                yield self._take(chunk, self.format)
                continue
            yield self._take(replace(chunk, last=False), self.format)
            if chunk.last:
                broken = replace(self.format, decode=_failing(content.broken))
                yield self._take(Chunk(chunk.sequence + 1, b"", last=True), broken)

    def _take(self, chunk: Chunk, format_: Format) -> Piece:
        version = pa.array([chunk.sequence], pa.int64())
        rows = chunks.rows(self.name, [chunk], self.received_at).append_column("version", version)
        staged = stage(rows, self.partial, format_)
        self.partial = staged.partial
        self.byte_count += len(chunk.content)
        buffer = np.frombuffer(self.rest + chunk.content, np.uint8)
        newlines = np.flatnonzero(buffer == NEWLINE)
        rejects = staged.rejects.sort_by([("chunk", "ascending"), ("offset", "ascending")])
        first = [self._placed(one, newlines) for one in rejects.slice(0, self.most).to_pylist()]
        left = sources_of(self.partial)[self.name]
        self.line += int(np.searchsorted(newlines, buffer.size - len(left.rest)))
        self.begin, self.rest = self.byte_count - len(left.rest), left.rest
        return Piece(staged, rejects, first, left.header)

    def _placed(self, reject: dict[str, Any], newlines: npt.NDArray[np.intp]) -> dict[str, Any]:
        """Return a reject with its place in the file; that of a chunk which a codec refused is where it would begin."""
        inside = reject["offset"]
        offset = self.byte_count if inside is None else (reject["chunk"] - 1) * PIECE_BYTES + inside
        line = self.line + int(np.searchsorted(newlines, offset - self.begin)) if self.format.text else None
        where = f"chunk {reject['chunk']}, offset {inside}: " if inside is not None else f"chunk {reject['chunk']}: "
        name = "" if reject["field"] is None else f"{reject['field']}: "
        detail = reject["detail"].removeprefix(where).removeprefix(name)
        return reject | {"offset": offset, "line": line, "detail": detail}


def _failing(error: CodecError) -> Any:
    def decode(_bytes: bytes) -> NoReturn:
        raise error

    return decode

"""Run a file through the raw stage chunk by chunk, and locate each reject in the file."""

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
from windrow.ingest.content import Coded, Content
from windrow.model import chunks
from windrow.model.chunks import Chunk

NEWLINE = ord("\n")
PIECE_BYTES = 262_144  # small, because bad records take much more memory than their bytes


@dataclass(slots=True)
class Piece:
    """The result for a piece of a file: its rejects in order, and the `first` of them with their place in the file."""

    staged: Staged
    rejects: pa.Table
    first: list[dict[str, Any]]
    header: bytes | None


@dataclass(slots=True)
class Source:
    """The state between two chunks: the byte and the line of the file at which the unfinished record begins.

    At most `most` rejects of a piece are located.
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

    def pieces(self, content: Content, codec: Coded | None) -> Iterator[Piece]:
        """Yield the results for the bytes of a file, which is read as one raw source."""
        for chunk in chunks.cut(content.decoded(codec), PIECE_BYTES):
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
        """Return a reject with its place in the file; a chunk that cannot be decompressed is where it would begin."""
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

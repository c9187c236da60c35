"""Check files against a format: run them through the raw stage, and count good and bad records."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import ExpressionError, FileUnreadableError, MessagesError, ensure
from windrow.formats.fields import parse, type_text
from windrow.formats.format import Format, format_of
from windrow.formats.raw.source import SCHEMA, sources_of
from windrow.formats.raw.spans import columns_of, narrow_format, with_places
from windrow.formats.raw.stage import StageResult, give_up_source, stage
from windrow.ingest.content import ByteCounter, Content, Progress, file_size
from windrow.ingest.format_check import shown
from windrow.ingest.format_check.output import Output
from windrow.model import chunks
from windrow.model.chunks import Chunk
from windrow.model.messages import INVALID_VALUE
from windrow.settings.settings import Settings
from windrow.source.conversion import Conversion, mapping_of, payload_type_of

NEWLINE = ord("\n")
PIECE_BYTES = 262_144  # small, because bad records take much more memory than their bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """A bad record: where it begins (`line` from 1, None for a format without lines; `offset` in bytes), and why.

    `field` is the bad field, None for the whole record; `record` is its beginning, for people.
    """

    file: str
    line: int | None
    offset: int
    reason: str
    field: str | None
    detail: str
    record_preview: str


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The result for one file; bytes are counted after decompression. The good records give `row_count` rows."""

    file: str
    byte_count: int
    accepted_count: int
    row_count: int
    rejected: int
    rejected_byte_count: int


@dataclass(frozen=True, slots=True)
class FormatCheckResult:
    """The result for all files: `reasons` counts the bad records, and `rejects` are the first of them.

    `unused` are the fields that are not converted. `sample` has the first good records, and `messages` the messages
    that the settings make of them. If there are no messages, `note` says why.
    """

    files: list[CheckedFile]
    accepted_count: int
    rejected: int
    reasons: dict[str, int]
    rejects: list[Rejected]
    fields: dict[str, str]
    unused: list[str]
    sample: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    note: str | None


@dataclass(slots=True)
class Piece:
    """The result for a piece of a file: its rejects in order, and the `first` of them with their place in the file."""

    staged: StageResult
    rejects: pa.Table
    first: list[dict[str, Any]]
    header: bytes | None


@dataclass(slots=True)
class CheckedSource:
    """The state between two chunks: the byte and the line of the file at which the unfinished record begins.

    At most `most` rejects of a piece are located.
    """

    name: str
    format: Format
    received_at: int
    most: int
    byte_count: int = 0
    start: int = 0
    line: int = 1
    tail: bytes = b""
    partial: pa.Table = field(default_factory=SCHEMA.empty_table)

    def pieces(self, content: Content) -> Iterator[Piece]:
        """Yield the results for the bytes of a file, which is read as one raw source."""
        for chunk in chunks.cut(content.decode(self.format.limits), PIECE_BYTES):
            if content.broken is None:
                yield self._take(chunk)
                continue
            yield self._take(replace(chunk, last=False))
            if chunk.last:
                yield self._end(chunk.sequence + 1, str(content.broken))

    def _take(self, chunk: Chunk) -> Piece:
        version = pa.array([chunk.sequence], pa.int64())
        rows = chunks.rows(self.name, [chunk], self.received_at).append_column("version", version)
        return self._piece(stage(rows, self.partial, self.format), chunk.content)

    def _end(self, number: int, why: str) -> Piece:
        """Return the result for the end of a file that cannot be decompressed any further."""
        place = {"raw_source": self.name, "chunk": number, "received_at": self.received_at, "version": number}
        reject = {"arrived_in": number, "ordinal": 0, "reason": "format_codec", "bytes": 0, "content": b""}
        detail = {"detail": f"chunk {number}: {why}"}
        return self._piece(give_up_source(self.name, self.partial, self.format, place | reject | detail), b"")

    def _piece(self, staged: StageResult, content: bytes) -> Piece:
        self.partial = staged.partial
        self.byte_count += len(content)
        buffer = np.frombuffer(self.tail + content, np.uint8)
        newlines = np.flatnonzero(buffer == NEWLINE)
        rejects = staged.rejects.sort_by([("chunk", "ascending"), ("offset", "ascending")])
        first = [self._locate(reject, newlines) for reject in rejects.slice(0, self.most).to_pylist()]
        left = sources_of(self.partial)[self.name]
        self.line += int(np.searchsorted(newlines, buffer.size - len(left.tail)))
        self.start, self.tail = self.byte_count - len(left.tail), left.tail
        return Piece(staged, rejects, first, left.header)

    def _locate(self, reject: dict[str, Any], newlines: npt.NDArray[np.intp]) -> dict[str, Any]:
        """Return a reject with its place in the file; a chunk that cannot be decompressed is at the current byte."""
        inside = reject["offset"]
        offset = self.byte_count if inside is None else (reject["chunk"] - 1) * PIECE_BYTES + inside
        line = self.line + int(np.searchsorted(newlines, offset - self.start)) if self.format.text else None
        where = f"chunk {reject['chunk']}, offset {inside}: " if inside is not None else f"chunk {reject['chunk']}: "
        name = "" if reject["field"] is None else f"{reject['field']}: "
        detail = reject["detail"].removeprefix(where).removeprefix(name)
        return reject | {"offset": offset, "line": line, "detail": detail}


@dataclass(slots=True)
class CheckTotals:
    """The results so far."""

    most: int
    files: list[CheckedFile] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    rejects: list[Rejected] = field(default_factory=list)
    sample: list[pa.Table] = field(default_factory=list)

    def add(self, file: str, piece: Piece, text: bool) -> None:
        """Add the result for a piece of a file."""
        counted = piece.rejects["reason"].value_counts().to_pylist()
        self.reasons.update({row["values"]: row["counts"] for row in counted})
        for start in piece.first[: self.most - len(self.rejects)]:
            place = {name: start[name] for name in ("line", "offset", "reason", "field", "detail")}
            self.rejects.append(Rejected(file=file, record_preview=shown.preview(start["content"], text), **place))
        room = self.most - sum(table.num_rows for table in self.sample)
        if room and piece.staged.fields.num_rows:
            self.sample.append(piece.staged.fields.slice(0, room))


class FormatChecker:
    """Checks files against the settings. Raises SettingsError and ExpressionError for wrong settings."""

    def __init__(self, settings: Settings) -> None:
        with settings.locating_errors("format", named="fields"):
            with_codec = format_of(settings.format)
        self.format: Format = replace(with_codec, codec="none")  # a file is decompressed before it is cut
        self._columns = columns_of(self.format.parser.schema)
        self._conversion, self._note = self._conversion_of(settings)
        self._fields = {field.name: type_text(field) for field in parse(settings.format.fields)}

    def files(
        self,
        files: Iterable[str],
        received_at: int,
        rejects: str | None = None,
        sample: int = 5,
        progress: Progress = lambda done, total: None,
    ) -> FormatCheckResult:
        """Read each file as a raw source, and return the result; `received_at` is in microseconds.

        Bad records are written to the file `rejects`. `sample` limits the good and the bad records that are returned.
        `progress` is called with the bytes read so far and the total, None if that is unknown. Raises
        FileUnreadableError, OutputFileError.
        """
        named = list(files)
        passed = ByteCounter([file_size(file, FileUnreadableError) for file in named], progress)
        totals = CheckTotals(sample)
        with nullcontext() if rejects is None else Output(rejects, self.format) as output:
            for file in named:
                content = Content(file, PIECE_BYTES, passed)
                totals.files.append(self._file(file, content, received_at, totals, output))
        return self._check_result(totals)

    def _file(
        self, file: str, content: Content, received_at: int, totals: CheckTotals, output: Output | None
    ) -> CheckedFile:
        source = CheckedSource(os.fsencode(file).decode(errors="replace"), self.format, received_at, totals.most)
        good = count = rejected = framed = refused = 0
        for piece in source.pieces(content):
            totals.add(file, piece, self.format.text)
            good += self._record_count(piece.staged.fields)
            count += piece.staged.fields.num_rows
            rejected += piece.rejects.num_rows
            framed += piece.staged.volume.framed
            refused += piece.staged.volume.rejected
            if output is not None:
                output.add(file, piece.header, piece.rejects["content"].to_pylist())
        ensure(source.byte_count == framed + refused, f"{file}: each byte is in a good record or in a bad one")
        return CheckedFile(file, source.byte_count, good, count, rejected, refused)

    def _record_count(self, fields: pa.Table) -> int:
        """Return how many records the rows come from; of a format with its own field `ordinal`, the rows."""
        if "ordinal" in self.format.parser.schema.names:
            return fields.num_rows
        return int(pc.sum(pc.equal(fields["ordinal"], 0)).as_py() or 0)

    def _check_result(self, totals: CheckTotals) -> FormatCheckResult:
        names = self.format.parser.schema.names
        schema = with_places(self.format.parser.schema)
        sample = pa.concat_tables([schema.empty_table(), *(rows.select(schema.names) for rows in totals.sample)])
        messages, note = self._messages(sample)
        return FormatCheckResult(
            files=totals.files,
            accepted_count=sum(file.accepted_count for file in totals.files),
            rejected=sum(file.rejected for file in totals.files),
            reasons=dict(totals.reasons.most_common()),
            rejects=totals.rejects,
            fields={name: type_ for name, type_ in self._fields.items() if name in names},
            unused=[name for name in self._fields if name not in names],
            sample=shown.rows(sample.select(names)),
            messages=messages,
            note=note,
        )

    def _conversion_of(self, settings: Settings) -> tuple[Conversion | None, str | None]:
        """Return the conversion of records to messages, or None and the reason why there is none."""
        try:
            mapping = mapping_of(settings.depot_columns, self._columns, rejects=True)
        except ExpressionError as error:
            if settings.depot_columns:
                raise
            return None, error.message
        self.format, self._columns = narrow_format(mapping, self.format)
        return Conversion(self.format, mapping, self._columns, payload_type_of(settings, mapping, self._columns)), None

    def _messages(self, sample: pa.Table) -> tuple[list[dict[str, Any]], str | None]:
        if self._conversion is None or not sample.num_rows:
            return [], self._note
        try:
            messages = self._conversion.apply(sample)
        except (ExpressionError, MessagesError) as error:
            return [], error.message
        if INVALID_VALUE not in messages.column_names:
            return shown.rows(messages), None
        invalid = messages[INVALID_VALUE].drop_null()
        note = f"{len(invalid)} would be rejected as invalid: {invalid[0]}" if len(invalid) else None
        return shown.rows(messages.drop_columns([INVALID_VALUE])), note

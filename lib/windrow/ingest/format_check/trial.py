"""Check files against a format: run them through the raw stage, and count good and bad records."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from windrow.engine.arrivals import mapping_of
from windrow.engine.conversion import Conversion, payload_type_of
from windrow.errors import ExpressionError, FileUnreadable, MessagesError, MissingExtra, require
from windrow.formats.fields import parse, type_text
from windrow.formats.format import Format
from windrow.formats.raw.columns import columns_of, placed
from windrow.formats.settings import format_of
from windrow.ingest.content import Coded, Content, Passed, Progress, size_of
from windrow.ingest.format_check import shown
from windrow.ingest.format_check.output import Output
from windrow.ingest.format_check.source import PIECE_BYTES, Piece, Source
from windrow.settings.settings import Settings


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
    record: str


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The result for one file; bytes are counted after decompression."""

    file: str
    bytes: int
    good: int
    rejected: int
    rejected_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for all files: `reasons` counts the bad records, and `rejects` are the first of them.

    `sample` has the first good records, and `messages` the messages that the settings make of these. If there are no
    messages, `note` says why.
    """

    files: list[CheckedFile]
    good: int
    rejected: int
    reasons: dict[str, int]
    rejects: list[Rejected]
    fields: dict[str, str]
    sample: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    note: str | None


@dataclass(slots=True)
class Found:
    """The results so far."""

    most: int
    files: list[CheckedFile] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    rejects: list[Rejected] = field(default_factory=list)
    sample: list[pa.Table] = field(default_factory=list)

    def add(self, file: str, piece: Piece, text: bool) -> None:
        """Add the result for a piece of a file."""
        counted = piece.rejects["reason"].value_counts().to_pylist()
        self.reasons.update({one["values"]: one["counts"] for one in counted})
        for one in piece.first[: self.most - len(self.rejects)]:
            place = {name: one[name] for name in ("line", "offset", "reason", "field", "detail")}
            self.rejects.append(Rejected(file=file, record=shown.beginning(one["content"], text), **place))
        wanted = self.most - sum(table.num_rows for table in self.sample)
        if wanted and piece.staged.fields.num_rows:
            self.sample.append(piece.staged.fields.slice(0, wanted))


class Check:
    """Checks files against the settings. Raises SettingsError and ExpressionError for wrong settings."""

    def __init__(self, settings: Settings) -> None:
        """Build the format and the mapping."""
        self._settings = settings.format
        with settings.locating_errors("format", named="fields"):
            with_codec = format_of(settings.format)
        codec = settings.format.codec
        self._codec = None if codec == "none" else Coded(codec, settings.format.max_decoded_bytes)
        self.format: Format = replace(with_codec, decode=None)  # a file is decompressed before it is cut
        self._columns = columns_of(self.format.parser.schema)
        self._conversion, self._note = self._converted(settings)

    def files(
        self,
        files: Iterable[str],
        received_at: int,
        rejects: str | None = None,
        sample: int = 5,
        progress: Progress = lambda done, total: None,
    ) -> Checked:
        """Read each file as a raw source, and return the result; `received_at` is in microseconds.

        Bad records are written to the file `rejects`. `sample` limits the good and the bad records that are returned.
        `progress` is called with the bytes read so far and the total, None if that is unknown. Raises FileUnreadable,
        OutputRefused.
        """
        named = list(files)
        passed = Passed([size_of(file, FileUnreadable) for file in named], progress)
        found = Found(sample)
        with nullcontext() if rejects is None else Output(rejects, self.format) as output:
            for file in named:
                content = Content(file, PIECE_BYTES, passed)
                found.files.append(self._file(file, content, received_at, found, output))
        return self._checked(found)

    def _file(self, file: str, content: Content, received_at: int, found: Found, output: Output | None) -> CheckedFile:
        source = Source(os.fsencode(file).decode(errors="replace"), self.format, received_at, found.most)
        good = rejected = framed = refused = 0
        for piece in source.pieces(content, self._codec):
            found.add(file, piece, self.format.text)
            good += piece.staged.fields.num_rows
            rejected += piece.rejects.num_rows
            framed += piece.staged.volume.framed
            refused += piece.staged.volume.rejected
            if output is not None:
                output.add(file, piece.header, piece.rejects["content"].to_pylist())
        require(
            source.byte_count == framed + refused,
            f"{file}: each byte is in a good record or in a bad one",
        )
        return CheckedFile(file, source.byte_count, good, rejected, refused)

    def _checked(self, found: Found) -> Checked:
        names = self.format.parser.schema.names
        given = placed(self.format.parser.schema)
        sample = pa.concat_tables([given.empty_table(), *(one.select(given.names) for one in found.sample)])
        messages, note = self._messages(sample)
        return Checked(
            files=found.files,
            good=sum(one.good for one in found.files),
            rejected=sum(one.rejected for one in found.files),
            reasons=dict(found.reasons.most_common()),
            rejects=found.rejects,
            fields={one.name: type_text(one) for one in parse(self._settings.fields)},
            sample=shown.rows(sample.select(names)),
            messages=messages,
            note=note,
        )

    def _converted(self, settings: Settings) -> tuple[Conversion | None, str | None]:
        """Return the conversion of records to messages, or None and the reason why there is none."""
        try:
            mapping = mapping_of(settings.depot_columns, self._columns)
        except MissingExtra as error:
            return None, error.message
        except ExpressionError as error:
            if settings.depot_columns:
                raise
            return None, error.message
        return Conversion(self.format, mapping, self._columns, payload_type_of(settings, mapping, self._columns)), None

    def _messages(self, sample: pa.Table) -> tuple[list[dict[str, Any]], str | None]:
        if self._conversion is None or not sample.num_rows:
            return [], self._note
        try:
            return shown.rows(self._conversion.apply(sample)), None
        except (ExpressionError, MessagesError, MissingExtra) as error:
            return [], error.message

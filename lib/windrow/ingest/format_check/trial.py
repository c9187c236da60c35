"""The trial: files through the stage of a run, and what came of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from windrow.engine.conversion import Conversion
from windrow.engine.slices import mapping_of
from windrow.errors import ExpressionError, MessagesError, MissingExtra, require
from windrow.formats.fields import parse, type_text
from windrow.formats.format import Format
from windrow.formats.raw.columns import columns_of, placed
from windrow.formats.settings import format_of
from windrow.ingest.format_check import shown
from windrow.ingest.format_check.content import Content, size_of
from windrow.ingest.format_check.output import Output
from windrow.ingest.format_check.source import Piece, Source
from windrow.settings.settings import Settings

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A bad record: where it begins (`line` from 1, None for a format without lines; `offset` in bytes), and why.

    `field` is the one that is bad, None for the record as a whole; `record` is its begin, for people.
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
    """What became of one file; bytes are counted behind its codec."""

    file: str
    bytes: int
    good: int
    rejected: int
    rejected_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of files: `reasons` counts bad records, of which `rejects` are the first.

    `sample` has the first good records, and `messages` what the settings make of these; where nothing could be made of
    them `note` says why.
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
    """What was found so far."""

    most: int
    files: list[CheckedFile] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    rejects: list[Rejected] = field(default_factory=list)
    sample: list[pa.Table] = field(default_factory=list)

    def add(self, file: str, piece: Piece, text: bool) -> None:
        """Add what became of a piece of a file."""
        counted = piece.rejects["reason"].value_counts().to_pylist()
        self.reasons.update({one["values"]: one["counts"] for one in counted})
        for one in piece.first[: self.most - len(self.rejects)]:
            place = {name: one[name] for name in ("line", "offset", "reason", "field", "detail")}
            self.rejects.append(Rejected(file=file, record=shown.beginning(one["content"], text), **place))
        wanted = self.most - sum(part.num_rows for part in self.sample)
        if wanted and piece.staged.fields.num_rows:
            self.sample.append(piece.staged.fields.slice(0, wanted))


class Check:
    """A check of files by the settings. Raises SettingsError and ExpressionError for settings that are wrong."""

    def __init__(self, settings: Settings) -> None:
        """Make format and mapping."""
        self._part = settings.format
        with settings.locating_errors("format", named="fields"):
            made = format_of(settings.format)
        self.format: Format = replace(made, decode=None)  # of a file the codec is undone before it is cut
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
        """Read files, each as a raw source, and return what became of them; `received_at` is in microseconds.

        Bad records are written to the file `rejects`. `sample` is how many records are shown, of the good ones and of
        the bad. `progress` is told how many bytes were read, and of how many. Raises FileUnreadable, OutputRefused.
        """
        named = list(files)
        passed = _Passed([size_of(file) for file in named], progress)
        found = Found(sample)
        with nullcontext() if rejects is None else Output(rejects, self.format) as output:
            for file in named:
                content = Content(file, self._part.codec, self._part.max_decoded_bytes, passed)
                found.files.append(self._file(file, content, received_at, found, output))
        return self._checked(found)

    def _file(self, file: str, content: Content, received_at: int, found: Found, output: Output | None) -> CheckedFile:
        source = Source(os.fsencode(file).decode(errors="replace"), self.format, received_at, found.most)
        good = rejected = framed = refused = 0
        for piece in source.pieces(content):
            found.add(file, piece, self.format.text)
            good += piece.staged.fields.num_rows
            rejected += piece.rejects.num_rows
            framed += piece.staged.volume.framed
            refused += piece.staged.volume.rejected
            if output is not None:
                output.add(file, piece.header, piece.rejects["content"].to_pylist())
        require(
            source.byte_count == framed + refused,
            f"{file}: each byte is in a record that is good, or in one that is bad",
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
            fields={one.name: type_text(one) for one in parse(self._part.fields)},
            sample=shown.rows(sample.select(names)),
            messages=messages,
            note=note,
        )

    def _converted(self, settings: Settings) -> tuple[Conversion | None, str | None]:
        """Return what makes messages of records, or why there is nothing."""
        try:
            mapping = mapping_of(settings.depot_columns, self._columns)
        except MissingExtra as error:
            return None, error.message
        except ExpressionError as error:
            if settings.depot_columns:
                raise
            return None, error.message
        payload = mapping.payload_type(self._columns) if mapping else pa.string()
        return Conversion(self.format, mapping, self._columns, payload), None

    def _messages(self, sample: pa.Table) -> tuple[list[dict[str, Any]], str | None]:
        if self._conversion is None or not sample.num_rows:
            return [], self._note
        try:
            return shown.rows(self._conversion.apply(sample)), None
        except (ExpressionError, MessagesError, MissingExtra) as error:
            return [], error.message


class _Passed:
    """Adds up what was read of all files."""

    def __init__(self, sizes: list[int | None], progress: Progress) -> None:
        known = [size for size in sizes if size is not None]
        self._total = sum(known) if len(known) == len(sizes) else None
        self._progress, self._done = progress, 0

    def __call__(self, byte_count: int) -> None:
        self._done += byte_count
        self._progress(self._done, self._total)

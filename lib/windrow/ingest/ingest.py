"""Ingest Parquet files and Delta tables into the depot, each once, however often the command runs.

The depot's log remembers what was ingested: the hash of a Parquet file's content, or the id and version of a Delta
table, is the transaction id of the commit that appended it. If a Delta table has grown since, its change feed is read
from where the last ingest stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windrow.delta.log import fingerprint_at
from windrow.errors import InputFileError
from windrow.expressions import ColumnMapping
from windrow.ingest.writer import DepotWriter, IngestInput
from windrow.model.commits import differs

Format = Literal["parquet", "delta"]


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What ingesting one file added, and in which depot version; an `already_ingested` file adds nothing."""

    file: str
    message_count: int
    depot_version: int
    already_ingested: bool
    stamped_by_event_time: bool


def ingest(
    writer: DepotWriter,
    files: Sequence[str],
    columns: dict[str, str],
    format_: Format = "parquet",
    retention: str = "90d",
    progress: Callable[[str, int], None] = lambda file, messages: None,
) -> Iterator[IngestResult]:
    """Append files to the depot, one commit per file, and yield the result for each.

    `columns` maps message columns to expressions over the file's columns. `retention` is the retention of a depot that
    is created here. `progress` is called with the file and the messages read so far. Raises InputFileError,
    ExpressionError.
    """
    writer.repair()
    states = [_state(_existing(file, format_)) for file in files]
    inputs = [writer.open_input(file, format_) for file in files]
    mappings = [ColumnMapping.of(columns, input_.schema.names) for input_ in inputs]
    for file, input_, mapping, state in zip(files, inputs, mappings, states, strict=True):

        def read(messages: int, file: str = file, input_: IngestInput = input_, state: object = state) -> None:
            if input_.table is None:
                _require_unchanged(file, state)
            progress(file, messages)

        writer.create(mapping.payload_type(input_.schema), retention)
        transaction, version = _identity(file, input_)
        if input_.table is None:
            _require_unchanged(file, state)
        recorded = writer.engine.transaction(writer.place, transaction, version)
        if input_.table is not None and recorded is not None:
            _require_same_log(writer, input_, transaction)
        # guard: file-once
        if recorded is not None and recorded >= version:
            yield IngestResult(file, 0, writer.depot().version, already_ingested=True, stamped_by_event_time=False)
            continue
        note = _note(writer, input_, transaction)
        added = writer.append(input_, mapping, (transaction, version), recorded, read, note)
        yield IngestResult(
            file,
            added,
            writer.depot().version,
            already_ingested=False,
            stamped_by_event_time=mapping.stamped_by_event_time,
        )


def _existing(file: str, format_: Format) -> str:
    path = Path(file)
    if "://" in file and format_ == "parquet":
        raise InputFileError(f"{file} is not a local file", "Copy it to this machine, and name the copy.")
    if "://" not in file and not path.exists():
        raise InputFileError(f"{file} does not exist", "Check the path; it is relative to the current directory.")
    if format_ == "parquet" and path.is_dir():
        is_delta = (path / "_delta_log").is_dir()
        hint = "Use --format delta." if is_delta else f"Name its files: {file}/*.parquet."
        raise InputFileError(f"{file} is a directory", hint)
    return file


def _state(file: str) -> tuple[int, ...] | None:
    """Return what changes when a file is written to or replaced; None if it is gone, or a table elsewhere."""
    try:
        stat = Path(file).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _require_unchanged(file: str, state: object) -> None:
    """Raise InputFileError if a file changed since it was opened: its hash would belong to other rows."""
    # guard: file-unchanged
    if _state(file) != state:
        raise InputFileError(f"{file} changed while it was ingested", "Ingest it again when nothing writes to it.")


def _note(writer: DepotWriter, input_: IngestInput, transaction: str) -> str:
    """Return what the depot's commit notes about an input: for a Delta table, which commit its version is."""
    note = {"ingested": transaction}
    if input_.table is not None:
        note["fingerprint"] = fingerprint_at(writer.input_log(input_), input_.table.version) or ""
    return json.dumps(note | {"version": 0 if input_.table is None else input_.table.version})


def _require_same_log(writer: DepotWriter, input_: IngestInput, transaction: str) -> None:
    """Raise InputFileError if the last version ingested from a table is no longer the same commit.

    The table was set back: new rows under version numbers that are used again would count as ingested.
    """
    notes = (note for note, _ in reversed(writer.log.notes()) if note.get("ingested") == transaction)
    last = next(notes, None)
    if last is None or input_.table is None:
        return
    known, version = last["fingerprint"], int(last["version"])
    # guard: ingested-version-same
    if input_.table.version < version or differs(fingerprint_at(writer.input_log(input_), version), known or None):
        raise InputFileError(
            f"version {version} of {input_.file} is not the commit that was ingested: the table was set back",
            "Restore its log; or ingest the new rows from another table or as files.",
        )


def _identity(file: str, input_: IngestInput) -> tuple[str, int]:
    """Return the transaction id under which the depot's log remembers the input, and the version."""
    if input_.table is not None:
        return f"ingest:{input_.table.id}", input_.table.version
    with Path(file).open("rb") as content:
        return f"ingest:{hashlib.file_digest(content, 'sha256').hexdigest()}", 0

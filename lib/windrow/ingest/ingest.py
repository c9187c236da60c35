"""Ingest: files into the depot, each file once, however often it is run.

The depot's log remembers what came in. A parquet file is known by the hash of its content, a Delta table by its id and
version; either is the transaction id of the depot commit that appended it. A Delta table that has grown since is
read on from where it was left, through its change feed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from windrow.engine.protocol import Input, Intake
from windrow.errors import FileRefused
from windrow.expressions import Mapping

Format = Literal["parquet", "delta"]


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of one file: how many messages it added, in which depot version; `known` files added none before."""

    file: str
    messages: int
    depot_version: int
    known: bool
    stamped_by_event_time: bool


def ingest(
    engine: Intake,
    files: Sequence[str],
    columns: dict[str, str],
    format_: Format = "parquet",
    keep: str = "90d",
    progress: Callable[[str, int], None] = lambda file, messages: None,
) -> Iterator[Ingested]:
    """Append files to the depot, one commit a file, and yield what became of each.

    `columns` maps message columns to expressions over the columns of the file; `keep` is the retention of a depot that
    is made here. `progress` is called with the messages
    read so far. Raises FileRefused, ExpressionError.
    """
    engine.mend()
    inputs = [engine.open_input(_existing(file, format_), format_) for file in files]
    mappings = [Mapping.of(columns, given.schema.names) for given in inputs]
    for file, given, mapping in zip(files, inputs, mappings, strict=True):
        engine.create_depot(mapping.payload_type(given.schema), keep)
        transaction, version = _identity(file, given)
        recorded = engine.transaction(transaction, version)
        # guard: file-once
        if recorded is not None and recorded >= version:
            yield Ingested(file, 0, engine.depot().version, known=True, stamped_by_event_time=False)
            continue
        added = engine.append(given, mapping, (transaction, version), recorded, partial(progress, file))
        yield Ingested(
            file, added, engine.depot().version, known=False, stamped_by_event_time=mapping.stamped_by_event_time
        )


def _existing(file: str, format_: Format) -> str:
    path = Path(file)
    if "://" not in file and not path.exists():
        raise FileRefused(f"there is no {file}", "Check the path; it is relative to where you are.")
    if format_ == "parquet" and path.is_dir():
        is_delta = (path / "_delta_log").is_dir()
        hint = "Say --format delta." if is_delta else f"Name its files: {file}/*.parquet."
        raise FileRefused(f"{file} is a directory", hint)
    return file


def _identity(file: str, given: Input) -> tuple[str, int]:
    """Return the transaction id under which the depot's log remembers the input, and the version of it."""
    if given.table is not None:
        return f"ingest:{given.table.id}", given.table.version
    with Path(file).open("rb") as content:
        return f"ingest:{hashlib.file_digest(content, 'sha256').hexdigest()}", 0

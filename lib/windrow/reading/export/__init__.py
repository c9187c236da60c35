"""Export closed batches, their messages, or rejections to a file: parquet, csv or json. No JVM, no engine.

With `raw`, the bytes that a format refused are written unchanged, to be corrected and ingested again.

Rows go from the ledger to the file piece by piece, in no particular order, so a ledger larger than memory can be
exported. The file appears under its name when it is complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast
from uuid import uuid4

from windrow.errors import OutputRefused, first_line
from windrow.reading.closed import span
from windrow.reading.delta import Ledger, open_ledger
from windrow.reading.export.rows import Choice, What, rows_of, shape_of
from windrow.reading.export.writers import Format, open_writer

__all__ = ["Choice", "Exported", "Format", "What", "export", "format_of"]

STANDARD_OUTPUT = "-"
FORMATS: dict[str, Format] = {"parquet": "parquet", "csv": "csv", "json": "json", "raw": "raw"}
ENDINGS: dict[str, Format] = {f".{name}": format_ for name, format_ in FORMATS.items() if name != "raw"}
ENDINGS |= {".jsonl": "json", ".ndjson": "json"}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported; `upto` is the `since` of the next export."""

    file: str
    format: Format
    what: What
    rows: int
    upto: str


def export(
    ledger: str,
    out: str,
    choice: Choice | None = None,
    format_: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Write the chosen rows of a ledger to a file, or to standard output (`-`, not for parquet).

    Without `format_` the ending of the file decides. `progress` is called with the batches or rejected messages read so
    far and the most that there can be. Raises OutputRefused, TableMissing, TableRefused, and LedgerRestored as
    `read_closed` does.
    """
    kind = format_of(out, format_)
    book = open_ledger(ledger)
    wanted = _refused_bytes(choice or Choice(), book) if kind == "raw" else choice or Choice()
    written_by = span(book, wanted.state, wanted.since)
    written_by.require_whole(book.rows(wanted.state, "count(*) AS rows", written_by.where)["rows"][0].as_py())
    written = 0
    schema, shape = shape_of(book, wanted, written_by)
    with _sink(out, overwrite) as sink, open_writer(kind, sink, schema) as write:
        for read, batch in rows_of(book, wanted, written_by, shape):
            write(batch)
            written += batch.num_rows
            progress(read, written_by.rows)
    return Exported(out, kind, wanted.what, written, written_by.upto)


def _refused_bytes(choice: Choice, book: Ledger) -> Choice:
    """Return the choice of the bytes that a format refused, in place of their rejections. Raises OutputRefused."""
    if choice.what not in ("rejected", "bytes"):
        raise OutputRefused("--format raw exports the bytes that a format refused", "Add --rejected.")
    if not book.raw:
        raise OutputRefused("the depot is not a raw depot, so no format refused anything", "Use csv or json.")
    if (choice.key, choice.begin, choice.end) != (None, None, None):
        raise OutputRefused("bytes that a format refused have no key and no time", "Leave out --key, --from and --to.")
    return replace(choice, what="bytes")


def format_of(out: str, given: str | None) -> Format:
    """Return the given format, or the one that the ending of the file names. Raises OutputRefused."""
    known = f"Known are {', '.join(FORMATS)}."
    if given is not None and given not in FORMATS:
        raise OutputRefused(f"there is no format {given!r}", known)
    found = FORMATS[given] if given else ENDINGS.get(Path(out).suffix.lower())
    if found is None:
        raise OutputRefused(f"the ending of {out!r} names no format", f"Add --format. {known}")
    if found == "parquet" and out == STANDARD_OUTPUT:
        raise OutputRefused("parquet cannot go to standard output", "Name a file, or use --format csv or json.")
    return found


@contextmanager
def _sink(out: str, overwrite: bool) -> Iterator[BinaryIO]:
    """Yield a temporary file and rename it at the end, when it is on disk; a failure leaves no file behind."""
    if out == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if "://" in out:
        raise OutputRefused(f"{out} is not a local file", "Export to a local file and copy it, or use Spark.")
    target = Path(out)
    _require_place(target, overwrite)
    partial = target.with_name(f".{target.name}.{uuid4().hex[:8]}.part")
    try:
        with partial.open("xb") as file:
            yield cast("BinaryIO", file)
            file.flush()
            os.fsync(file.fileno())
        _require_place(target, overwrite)
        partial.replace(target)
    except OSError as error:
        raise OutputRefused(
            f"{out} cannot be written: {first_line(error)}", "Check the free space and the permission to write."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _require_place(target: Path, overwrite: bool) -> None:
    if not target.parent.is_dir():
        raise OutputRefused(f"there is no directory {target.parent}", "Create it first.")
    if target.is_dir():
        raise OutputRefused(f"{target} is a directory", "Name a file in it.")
    if target.exists() and not overwrite:
        raise OutputRefused(f"{target} exists already", "Name another file, or add --overwrite.")

"""Commit raw files to a raw depot, whose log recognises each file by its content and each raw source by its length.

The last commit of a file records two application transactions: `ingest:SHA-256`, so that the content is ingested only
once, and `raw:RAW SOURCE` with the size of the file, because other content would reuse the numbers of its chunks.
Earlier commits record how far the raw source has come and the digest up to there, so that a later run can check that it
continues the same content; the first one records how the file begins. Like a producer, each commit records the number
of its last chunk and whether the raw source has ended, so that a file and a producer cannot use a number twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem

from windrow.delta.creation import require_kind
from windrow.delta.locations import local_path
from windrow.delta.lock import commit_lock
from windrow.delta.mending import repair_log
from windrow.delta.table import READ_ERRORS, UNTRIMMED, history, open_table, table_files, unwritable_error
from windrow.errors import IncompatibleTableError, InputFileError
from windrow.model.commits import BYTES
from windrow.producer.queue import ENDED
from windrow.producer.writer import application, marks

NOTE = "windrow.ingest"
ATTEMPTS = 5
# The applications of files in the log, and their numbers.
CONTENT = "ingest:{}"  # a file that the depot has completely, by its digest
RAW_SOURCE = "raw:{}"  # a raw source that the depot has completely: the file's size in bytes
BEGUN = "begun:{}"  # an incomplete raw source: the bytes that the depot has
PREFIX = "prefix:{}:{}"  # a raw source that begins with bytes of this digest: their chunks
BEGINNING = "beginning:{}"  # files whose first bytes have this digest


@dataclass(frozen=True, slots=True)
class FilePart:
    """A stretch of a file from byte `start` to `byte_count`, up to which the file has `chunks` chunks.

    `digest` covers all bytes so far, `begin` the first ones (None while there are too few to distinguish files). `size`
    is the size of the file on disk in bytes, set in the `last` portion. A portion without files was only hashed,
    because the depot has its raw source already.
    """

    name: str
    file: str
    raw_source: str
    start: int
    byte_count: int
    chunks: int
    digest: str
    begin: str | None
    last: bool
    size: int = 0
    added: tuple[AddAction, ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of chunks it adds."""
        return sum(json.loads(file.stats)["numRecords"] for file in self.added)

    def numbers(self, begin: str | None) -> dict[str, int]:
        """Return the application transactions of its commit; `begin` is the digest of the file's first bytes."""
        if self.last:
            reached = {CONTENT.format(self.digest): 0, RAW_SOURCE.format(self.raw_source): self.size}
            reached[marks(self.raw_source)] = ENDED
        else:
            reached = {BEGUN.format(self.raw_source): self.byte_count}
            reached[PREFIX.format(self.digest, self.raw_source)] = self.chunks
        reached[application(self.raw_source)] = self.chunks
        return reached if begin is None or self.start else reached | {BEGINNING.format(begin): 0}


class RawDepot:
    """Commits files to one raw depot."""

    def __init__(self, location: str) -> None:
        """Open the depot. Raises IncompatibleTableError, TableMissingError, TableUnreadableError."""
        self.location = location
        repair_log(location, "depot")
        self._root = local_path(location)
        table = self._open()
        self.store = table_files(location, table)
        self._seen = table.version()  # this object's own commits are later

    def complete_size(self, raw_source: str) -> int | None:
        """Return the size in bytes of a raw source that the depot has completely, else None."""
        return self._open().transaction_version(RAW_SOURCE.format(raw_source))

    def incomplete_size(self, raw_source: str) -> int:
        """Return how many bytes of an incomplete raw source the depot has."""
        return self._open().transaction_version(BEGUN.format(raw_source)) or 0

    def chunks_of(self, file: str, raw_source: str, byte_count: int, digest: str) -> int:
        """Return how many chunks of a raw source the depot has. Raises InputFileError unless they have this digest."""
        chunks = self._open().transaction_version(PREFIX.format(digest, raw_source))
        # guard: raw-file-goes-on
        if chunks is None:
            raise other_content_error(
                file, raw_source, f"it does not begin with the {byte_count:,} bytes that the depot has of it"
            )
        return chunks

    def require_same(self, file: str, raw_source: str, byte_count: int | None) -> None:
        """Raise InputFileError for a file whose size is not that of its raw source in the depot."""
        whole = None if byte_count is None else self.complete_size(raw_source)
        if whole is not None and whole != byte_count:
            raise other_content_error(
                file, raw_source, f"the depot has {whole:,} bytes of it, but now it has {byte_count:,}"
            )

    def commit(self, portion: FilePart, latest: FilePart) -> tuple[int, bool] | None:
        """Add the chunks of a portion in one commit; return the depot's version, and whether it had them already.

        The file was read up to the portion `latest`. Returns None as long as the file may be one that the depot has
        under another name. Files that no commit names are removed, unless it is unknown whether one does. Raises
        InputFileError if the raw source has other content, TableUnwritableError, TableUnreadableError,
        TableLockedError.
        """
        with commit_lock(self.location):
            try:
                return self._commit(portion, latest)
            except InputFileError:
                self.discard(portion)
                raise
            except READ_ERRORS as error:
                version = self._version_of(portion)  # if this fails too, the files stay
                if version is not None:
                    return version, False
                if self._root is not None or isinstance(error, CommitFailedError):
                    self.discard(portion)
                raise unwritable_error(self.location, "depot", error) from error

    def discard(self, portion: FilePart) -> None:
        """Remove the files of a portion."""
        discard(self.store, [file.path for file in portion.added])

    def _commit(self, portion: FilePart, latest: FilePart) -> tuple[int, bool] | None:
        left = ATTEMPTS
        while True:
            left -= 1
            table = self._open()
            if _is_there(table, portion, latest):
                if (
                    version := self._version_of(portion)
                ) is not None:  # an earlier attempt committed but reported failure
                    return version, False
                self.discard(portion)
                return table.version(), True
            _require_next(table, portion)
            if not portion.start and _may_be_another(table, latest):
                return None
            try:
                return self._add_chunks(table, portion, latest.begin), False
            except CommitFailedError:
                if not left:
                    raise

    def _add_chunks(self, table: DeltaTable, portion: FilePart, begin: str | None) -> int:
        metrics = {"num_added_files": len(portion.added), "num_removed_files": 0, "num_added_rows": portion.rows}
        metadata = {NOTE: portion.name, BYTES: str(portion.byte_count - portion.start), "operationMetrics": metrics}
        numbers = portion.numbers(begin)
        table.create_write_transaction(
            list(portion.added),
            "append",
            table.schema(),
            commit_properties=CommitProperties(
                custom_metadata=metadata,
                # guard: raw-file-once-in-race
                app_transactions=[Transaction(*number) for number in numbers.items()],
            ),
            post_commithook_properties=UNTRIMMED,
        )
        version = self._version_of(portion)
        return self._open().version() if version is None else version

    def _version_of(self, portion: FilePart) -> int | None:
        """Return the version that committed a portion, None if none did."""
        for commit in history(self._open(), self._seen + 1):
            if commit.get(NOTE) == portion.name:
                return int(commit["version"])
        return None

    def _open(self) -> DeltaTable:
        table = open_table(self.location, "depot")
        _require(table, self.location)
        return table


def _is_there(table: DeltaTable, portion: FilePart, latest: FilePart) -> bool:
    """Tell whether a depot has a portion: in its raw source, or in another one with the same content.

    A file that was partly ingested under its own name is completed, even if another raw source has its content.
    """
    number = table.transaction_version
    if number(PREFIX.format(portion.digest, portion.raw_source)) is not None and not portion.last:
        return True
    if not latest.last or number(CONTENT.format(latest.digest)) is None:
        return False
    # guard: raw-content-once
    return number(RAW_SOURCE.format(portion.raw_source)) is not None or number(BEGUN.format(portion.raw_source)) is None


def _require_next(table: DeltaTable, portion: FilePart) -> None:
    """Raise InputFileError for a portion that does not begin where its raw source ends in the depot."""
    # guard: raw-numbers-unique
    if not portion.added or table.transaction_version(RAW_SOURCE.format(portion.raw_source)) is not None:
        raise other_content_error(portion.file, portion.raw_source, "its content differs from the content in the depot")
    reached = table.transaction_version(BEGUN.format(portion.raw_source)) or 0
    # guard: raw-place-taken
    if reached != portion.start:
        raise InputFileError(
            f"{portion.file}: another process ingested raw source {portion.raw_source} up to byte {reached:,} "
            "meanwhile",
            "Ingest it again; it resumes at the end of the raw source.",
        )
    sent = table.transaction_version(application(portion.raw_source)) or 0
    # guard: file-or-producer
    if sent != portion.chunks - portion.rows:
        raise InputFileError(
            f"{portion.file}: a producer has sent chunks of raw source {portion.raw_source} up to number {sent:,}",
            "Ingest it as another raw source: --raw-source NAME.",
        )


def _may_be_another(table: DeltaTable, latest: FilePart) -> bool:
    """Tell whether a new file begins like one in the depot, so that only its end shows whether it is the same."""
    if latest.last:
        return False
    # guard: raw-copy-adds-nothing
    return latest.begin is None or table.transaction_version(BEGINNING.format(latest.begin)) is not None


def _require(table: DeltaTable, location: str) -> None:
    """Raise IncompatibleTableError for a table that is not a raw depot, or needs more than the columns of chunks."""
    require_kind(pa.schema(table.schema().to_arrow()), location, raw=True)
    metadata = table.metadata()
    if metadata.partition_columns or any(not field.nullable for field in table.schema().fields):
        raise IncompatibleTableError(
            f"the depot at {location} is partitioned, or has a NOT NULL column",
            "Ingest raw files into a depot that Windrow creates: `windrow init --raw`.",
        )


def other_content_error(file: str, raw_source: str, why: str) -> InputFileError:
    """Return the error for a file whose raw source has other content in the depot."""
    return InputFileError(
        f"{file} was ingested as raw source {raw_source} and has grown or was replaced: {why}",
        "Its chunks would reuse numbers. Ingest it as another raw source: --raw-source NAME.",
    )


def discard(store: FileSystem, paths: Iterable[str]) -> None:
    """Remove files that no commit names. Files that cannot be removed are left to the table's clean-up."""
    for path in paths:
        with suppress(OSError):
            store.delete_file(path)

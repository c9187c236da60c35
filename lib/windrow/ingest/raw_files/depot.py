"""A raw depot as files come into it: its log knows each by its content, and each raw source by how long it is.

The last commit of a file has two numbers of applications: `ingest:SHA-256`, so that its content comes in once, and
`raw:RAW SOURCE` with the bytes of the file, because other content would use the numbers of its chunks again. Commits
before it say how far the raw source has come and what it was till there, the first one how the file begins.
"""

from __future__ import annotations

import time

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from windrow.delta.creation import require_raw
from windrow.delta.locations import local_path
from windrow.delta.lock import commit_lock
from windrow.delta.mending import mend
from windrow.delta.table import FAULTS, UNTRIMMED, history, open_table, table_files, unwritable
from windrow.errors import FileRefused, TableRefused
from windrow.ingest.raw_files import portion as known
from windrow.ingest.raw_files.parts import discard
from windrow.ingest.raw_files.portion import Portion
from windrow.model.commits import BYTES, FEED
from windrow.producer.writer import application

NOTE = "windrow.ingest"
ATTEMPTS = 5


class RawDepot:
    """Commits files to one raw depot."""

    def __init__(self, location: str) -> None:
        """Open the depot. Raises TableRefused, TableMissing, TableUnreadable."""
        self.location = location
        mend(location, "depot")
        self._root = local_path(location)
        table = self._open()
        self.store = table_files(location, table)
        self._seen = table.version()  # what was committed by this object came later

    def recorded(self, raw_source: str) -> int | None:
        """Return of how many bytes a raw source is, None for one that the depot does not have to its end."""
        return self._open().transaction_version(known.raw_source(raw_source))

    def begun(self, raw_source: str) -> int:
        """Return how many bytes of a raw source are there, as long as it is not whole."""
        return self._open().transaction_version(known.begun(raw_source)) or 0

    def chunks_of(self, file: str, raw_source: str, byte_count: int, digest: str) -> int:
        """Return how many chunks of a raw source are there. Raises FileRefused unless they have this digest."""
        chunks = self._open().transaction_version(known.prefix(digest, raw_source))
        # guard: raw-file-goes-on
        if chunks is None:
            raise refused(
                file, raw_source, f"it does not begin with the {byte_count:,} bytes of it that are in the depot"
            )
        return chunks

    def require_same(self, file: str, raw_source: str, byte_count: int | None) -> None:
        """Raise FileRefused for a file that is longer or shorter than what the depot has of its raw source."""
        whole = None if byte_count is None else self.recorded(raw_source)
        if whole is not None and whole != byte_count:
            raise refused(file, raw_source, f"{whole:,} bytes of it are in the depot, now it has {byte_count:,}")

    def commit(self, given: Portion, latest: Portion) -> tuple[int, bool] | None:
        """Add the chunks of a portion in one commit; return the depot's version, and whether it had them already.

        `latest` is the portion up to which the file was read. None as long as the file may be one that the depot has
        under another name. What was written for nothing is removed, unless nobody knows whether it was for nothing.
        Raises FileRefused for other content than the raw source has, TableUnwritable, TableUnreadable, TableLocked.
        """
        with commit_lock(self.location):
            try:
                return self._committed(given, latest)
            except FileRefused:
                self.discard(given)
                raise
            except FAULTS as error:
                found = self._version_of(given)  # where this fails as well, the files stay
                if found is not None:
                    return found, False
                if self._root is not None or isinstance(error, CommitFailedError):
                    self.discard(given)
                raise unwritable(self.location, "depot", error) from error

    def discard(self, given: Portion) -> None:
        """Remove what was written of a portion."""
        discard(self.store, [file.path for file in given.added])

    def _committed(self, given: Portion, latest: Portion) -> tuple[int, bool] | None:
        left = ATTEMPTS
        while True:
            left -= 1
            table = self._open()
            if _is_there(table, given, latest):
                if (version := self._version_of(given)) is not None:  # an attempt before was told that it failed
                    return version, False
                self.discard(given)
                return table.version(), True
            _require_next(table, given)
            if not given.start and _may_be_another(table, latest):
                return None
            try:
                return self._added(table, given, latest.begin), False
            except CommitFailedError:
                if not left:
                    raise

    def _added(self, table: DeltaTable, given: Portion, begin: str | None) -> int:
        metrics = {"num_added_files": len(given.added), "num_removed_files": 0, "num_added_rows": given.rows}
        said = {NOTE: given.name, BYTES: str(given.byte_count - given.start), "operationMetrics": metrics}
        numbers = given.numbers(begin)
        now = time.time_ns() // 1_000_000
        table.create_write_transaction(
            [AddAction(file.path, file.byte_count, {}, now, True, file.statistics) for file in given.added],
            "append",
            table.schema(),
            commit_properties=CommitProperties(
                custom_metadata=said,
                # guard: raw-file-once-in-race
                app_transactions=[Transaction(*number) for number in numbers.items()],
            ),
            post_commithook_properties=UNTRIMMED,
        )
        version = self._version_of(given)
        return self._open().version() if version is None else version

    def _version_of(self, given: Portion) -> int | None:
        """Return the version whose entry has the chunks of a portion, None when none has."""
        for commit in history(self._open(), self._seen + 1):
            if commit.get(NOTE) == given.name:
                return int(commit["version"])
        return None

    def _open(self) -> DeltaTable:
        table = open_table(self.location, "depot")
        _require(table, self.location)
        return table


def _is_there(table: DeltaTable, given: Portion, latest: Portion) -> bool:
    """Tell whether a depot has a portion: of its raw source, or of another one with the same content.

    A file of which something came in under its own name is brought to its end, wherever else its content is.
    """
    number = table.transaction_version
    if number(known.prefix(given.digest, given.raw_source)) is not None and not given.last:
        return True
    if not latest.last or number(known.content(latest.digest)) is None:
        return False
    # guard: raw-content-once
    return number(known.raw_source(given.raw_source)) is not None or number(known.begun(given.raw_source)) is None


def _require_next(table: DeltaTable, given: Portion) -> None:
    """Raise FileRefused for a portion that does not go on where its raw source has come to."""
    # guard: raw-numbers-unique
    if not given.added or table.transaction_version(known.raw_source(given.raw_source)) is not None:
        raise refused(given.file, given.raw_source, "its content is not the one that is in the depot")
    reached = table.transaction_version(known.begun(given.raw_source)) or 0
    # guard: raw-place-taken
    if reached != given.start:
        raise FileRefused(
            f"{given.file}: while it was read, raw source {given.raw_source} has come to byte {reached:,}",
            "Somebody else ingests it. Ingest it again: it goes on where it is then.",
        )
    sent = table.transaction_version(application(given.raw_source)) or 0
    # guard: file-or-producer
    if sent != given.chunks - given.rows:
        raise FileRefused(
            f"{given.file}: a producer has sent chunks of raw source {given.raw_source}, up to number {sent:,}",
            "Ingest it as another raw source: --raw-source NAME.",
        )


def _may_be_another(table: DeltaTable, latest: Portion) -> bool:
    """Tell whether a file of which nothing is there begins as one that is there; at its end that is known."""
    if latest.last:
        return False
    # guard: raw-copy-adds-nothing
    return latest.begin is None or table.transaction_version(known.beginning(latest.begin)) is not None


def _require(table: DeltaTable, location: str) -> None:
    """Raise TableRefused for a table that is no raw depot, or to which more than files must be told."""
    require_raw(pa.schema(table.schema().to_arrow()), location)
    metadata = table.metadata()
    if metadata.configuration.get(FEED) != "true":
        raise TableRefused(
            f"the depot at {location} has no change data feed, so nothing of it would be batched",
            f"Switch it on: ALTER TABLE ... SET TBLPROPERTIES ({FEED} = true).",
        )
    if metadata.partition_columns or any(not field.nullable for field in table.schema().fields):
        raise TableRefused(
            f"the depot at {location} is partitioned, or wants something in a column",
            "Ingest raw files into a depot that Windrow makes: `windrow init --raw`.",
        )


def refused(file: str, raw_source: str, why: str) -> FileRefused:
    """Return the error for a file that is not the one that came in as its raw source."""
    return FileRefused(
        f"{file} was ingested as raw source {raw_source} and has grown or was replaced: {why}",
        "Its chunks would take numbers that are taken. Ingest it as another raw source: --raw-source NAME.",
    )

"""Append to a depot with fencing: each commit records the number of the producer's last message.

delta-rs does not skip a commit that was already made. So the recorded number is compared before each commit, and
delta-rs compares it again on the same handle: if another process has changed it since, the commit conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.transaction import Transaction

from windrow.columnar.arrow import to_plain_type
from windrow.delta.creation import create_depot
from windrow.delta.lock import commit_lock, sync_recent
from windrow.delta.mending import repair_log
from windrow.delta.table import (
    UNTRIMMED,
    TableSnapshot,
    history,
    open_table,
    translate_read_errors,
    translate_write_errors,
)
from windrow.errors import CommitNotDurableError, IncompatibleTableError, ProducerFencedError
from windrow.model import chunks, messages
from windrow.model.commits import BYTES
from windrow.model.payload import of_column
from windrow.producer.delivery import Position

REOPENED_EVERY = 20  # commits: each commit through the same handle is slower than the one before
NOTE = "windrow.batch"
# Times and numbers hardly repeat: building and dropping a dictionary for them took a third of the time, and space.
WRITTEN = WriterProperties(
    compression="SNAPPY",
    column_properties={
        name: ColumnProperties(dictionary_enabled=False) for name in ("event_time", "received_at", "sequence")
    },
)


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """A commit in the log: the producer, its last number before, the note that identifies the commit, and its marks."""

    name: str
    before: int
    note: str
    mark: int | None = None
    fingerprint: int | None = None

    def numbers(self, messages: int) -> dict[str, int]:
        """Return the application transactions of the commit."""
        values = {marks(self.name): self.mark, fingerprints(self.name): self.fingerprint}
        transactions = {name: number for name, number in values.items() if number is not None}
        return {application(self.name): self.before + messages} | transactions


class DepotWriter:
    """Appends to one depot; it is not thread-safe."""

    def __init__(self, location: str, *, raw: bool = False) -> None:
        """Open the depot, a raw one if `raw`.

        Raises IncompatibleTableError, TableMissingError, TableUnreadableError.
        """
        self._location, self.raw = location, raw
        self._open()
        self._commits = 0
        self._failed = False
        self._doubts: dict[str, tuple[CommitEntry, int, int]] = {}  # with the number after it, and the version before
        self._own: dict[str, int] = {}  # the last number that this process has committed
        self._acknowledged = self._table.version()
        self._identity = self._table.metadata().id
        self.schema, self._others = _require_columns(self._table, location, raw)

    @classmethod
    def open_or_create(cls, location: str, schema: pa.Schema, retention: str) -> DepotWriter:
        """Open the depot, or create one for messages or chunks. Raises IncompatibleTableError, TableUnreadableError."""
        raw = schema == chunks.RAW
        repair_log(location, "depot")
        with translate_read_errors(location, "depot"):
            exists = DeltaTable.is_deltatable(location)
        if not exists:
            create_depot(location, None if raw else schema.field("payload").type, retention)
        return cls(location, raw=raw)

    def read_position(self, name: str) -> Position:
        """Return the current position of a producer in the log."""
        table = self._reload()
        mark, fingerprint = (table.transaction_version(name_of(name)) for name_of in (marks, fingerprints))
        return Position(_sequence(table, name), mark, fingerprint)

    def append(self, rows: pa.Table, entry: CommitEntry, fsync: bool) -> int:
        """Append rows in one commit, and return its version.

        A commit that reported a failure but is in the log, from this or an earlier attempt, is recognised by its note.
        Raises ProducerFencedError if another process has written as this producer, TableUnwritableError,
        TableUnreadableError, TableLockedError.
        """
        if self._failed or self._commits % REOPENED_EVERY == 0 or not self._snapshot.stands():
            self._reload()
        self._failed = True
        version = self._find_commit(entry)
        if version is None:
            version = self._commit(rows, entry, fsync)
        elif fsync:
            sync_recent(self._location)
        self._commits += 1
        self._acknowledged = version
        self._failed = False
        self._doubts.pop(entry.name, None)
        self._own[entry.name] = entry.before + rows.num_rows
        return version

    def resume_sequence(self, name: str, sequence: int, note: str) -> int:
        """Return the number after which the commit with this `note` continues.

        It is `sequence`, unless this process has committed under the same name since it was read, or an earlier commit
        with an unknown outcome is in the log after all. Raises like `append`.
        """
        sequence = max(sequence, self._own.get(name, 0))
        doubt, after, _ = self._doubts.get(name, (None, 0, 0))
        if doubt is None or doubt.note == note:
            return sequence
        self._reload()
        try:
            version = self._find_commit(doubt)
        except ProducerFencedError:  # it is not in the log; the next comparison detects the changed number
            version = None
        del self._doubts[name]
        return sequence if version is None else after

    def may_be_committed(self, name: str, note: str) -> bool:
        """Tell whether the commit of a producer with this `note` may be in the log although it failed."""
        return name in self._doubts and self._doubts[name][0].note == note

    def _commit(self, rows: pa.Table, entry: CommitEntry, fsync: bool) -> int:
        self._doubts[entry.name] = entry, entry.before + rows.num_rows, self._acknowledged
        try:
            with commit_lock(self._location, fsync), translate_write_errors(self._location, "depot"):
                return self._write(rows, entry)
        # guard: acknowledged-kept
        except CommitNotDurableError:
            raise
        except BaseException:
            self._reload()
            try:
                version = self._find_commit(entry)
            except ProducerFencedError:
                del self._doubts[entry.name]
                raise
            if version is None:
                del self._doubts[entry.name]
                raise
            return version

    def _write(self, rows: pa.Table, entry: CommitEntry) -> int:
        numbers, metadata = entry.numbers(rows.num_rows), {NOTE: entry.note}
        if self.raw:
            metadata |= {BYTES: str(pc.sum(pc.binary_length(rows["bytes"])).as_py())}
        for field in self._others:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        write_deltalake(
            self._table,
            rows,
            mode="append",
            writer_properties=WRITTEN,
            commit_properties=CommitProperties(
                # guard: producer-race
                app_transactions=[Transaction(*number) for number in numbers.items()],
                custom_metadata=metadata,
            ),
            post_commithook_properties=UNTRIMMED,
        )
        self._snapshot = TableSnapshot.of(self._location, self._table)
        return self._snapshot.version

    def _find_commit(self, entry: CommitEntry) -> int | None:
        """Return the version of a commit that is in the log already, None if it is not. Raises ProducerFencedError."""
        with translate_read_errors(self._location, "depot"):
            if _sequence(self._table, entry.name) == entry.before:
                return None
            if _sequence(self._reload(), entry.name) == entry.before:
                return None
            doubt, _, before = self._doubts.get(entry.name, (None, 0, 0))
            known = before if doubt is not None and doubt.note == entry.note else self._acknowledged
            for commit in history(self._table, known + 1):
                # guard: lost-reply-found
                if commit.get(NOTE) == entry.note:
                    return int(commit["version"])
        # guard: producer-sees-others
        raise ProducerFencedError(
            f"another process writes as producer {entry.name!r}",
            "Give each process its own id. This process did not write the failed messages.",
        )

    def _reload(self) -> DeltaTable:
        """Open the latest version of the depot. Raises IncompatibleTableError if it is another table now."""
        table = self._open()
        if table.metadata().id != self._identity:
            raise IncompatibleTableError(
                f"the depot at {self._location} is not the table that this producer opened",
                "It was removed or replaced, and its messages with it. Open the producer again.",
            )
        schema, self._others = _require_columns(table, self._location, self.raw)
        if schema != self.schema:
            kind = schema.field("payload").type
            raise IncompatibleTableError(
                f"the payload type of the depot at {self._location} is now {kind}",
                "Open the producer again.",
            )
        return table

    def _open(self) -> DeltaTable:
        self._table = open_table(self._location, "depot")
        with translate_read_errors(self._location, "depot"):
            self._snapshot = TableSnapshot.of(self._location, self._table)
        return self._table


def _require_columns(table: DeltaTable, location: str, raw: bool) -> tuple[pa.Schema, list[pa.Field]]:
    """Return the columns of messages or chunks in the depot, and its other columns.

    Raises IncompatibleTableError for a table with the wrong columns, or with other columns that are NOT NULL.
    """
    schema = pa.schema(table.schema().to_arrow())
    required = chunks.RAW if raw else messages.schema(of_column(schema))
    what = "chunk" if raw else "message"
    for field in required:
        type_ = to_plain_type(schema.field(field.name).type) if field.name in schema.names else None
        if type_ != field.type:
            state = "missing" if type_ is None else f"of type {type_}"
            raise IncompatibleTableError(
                f"the depot at {location} does not have the columns of a producer's {what}s: {field.name} is {state}",
                "Produce to a separate depot; a run reads one depot at a time.",
            )
    others = [field for field in schema if field.name not in required.names]
    if wanting := [field.name for field in others if not field.nullable]:
        raise IncompatibleTableError(
            f"the depot at {location} has NOT NULL columns that a {what} does not have: {', '.join(wanting)}",
            "Produce to a separate depot; a run reads one depot at a time.",
        )
    return required, others


def application(name: str) -> str:
    """Return the application whose number is that of the last row of a producer or raw source."""
    return f"producer:{name}"


def marks(name: str) -> str:
    """Return the application whose number is the last mark of a producer, or says that a raw source has ended."""
    return f"mark:{name}"


def fingerprints(name: str) -> str:
    """Return the application whose number is the last fingerprint of a producer."""
    return f"fingerprint:{name}"


def _sequence(table: DeltaTable, name: str) -> int:
    return int(table.transaction_version(application(name)) or 0)

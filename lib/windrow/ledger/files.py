"""Read the live rows of a ledger file by file, and commit with one transaction of delta-rs that adds files.

The fence: nothing is committed unless the version that was primed is still the latest. delta-rs writes exactly the next
version to the log, and never tries a later one. Each engine has a separate handle of the table, and nothing is
committed if the handle has moved on since prime or if the log has another entry for that version.

The log's statistics show whether a file can hold a stream, and when its first window ends. So a microbatch reads few
of many open batches. Windows of a batch only shrink and a tombstone keeps stream and window, so a file that is left out
has no later version of a batch that is needed; it may have one of another batch in a file that is read, so rows are
filtered too.

A microbatch reads the *header* of an open batch, which is all but the messages (`headers.py`). It reads messages only
of the batches that it can change: if a file is not in memory, only their row groups. What was read or written stays in
memory (`file_cache.py`).

A fold processes the rows of some ids at a time, so it needs memory only for these, however many there are. It writes
live rows in the order of their ids, so by stream. `file_writer.py` writes the files, here or in Spark's tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from windrow.columnar.arrow import (
    boolean_array,
    boolean_scalar,
    combine_chunks,
    conform,
    empty_table,
    filter_rows,
    string_scalar,
    times_to_numbers,
    to_plain_types,
)
from windrow.columnar.compiled import Ints
from windrow.delta.table import UNTRIMMED, TableSnapshot, table_files, translate_read_errors
from windrow.errors import ConcurrentCommitError, first_line
from windrow.ledger.file_cache import FileCache
from windrow.ledger.file_writer import FileWriter, WrittenFile, partition, pieces
from windrow.ledger.headers import Headers
from windrow.ledger.live import OpenRows, last_window_ends
from windrow.ledger.pruning import STATISTICS, Extent, FilePruner
from windrow.ledger.versions import Fold, Growth, apply_versions, concatenate_lists, latest, latest_whole, record_growth
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.id_filter import IdFilter, Range
from windrow.model.open_batches import FAR, MESSAGES, BatchFilter, no_messages, with_messages

BY = "state"
STATE, FOLDED = (f"partition.{name}" for name in tables.PARTITIONS)  # in the add actions of delta-rs

FOLD_BYTES = 32_000_000  # on disk, of a part of a fold; for the rows of a fleet, ten times as much in memory
SMALL_BYTES = 100_000  # on disk
ALIKE = 7  # so eight files of one size become one; with two, each message of a long delay was rewritten five times
LAST_ID = "\U0010ffff"  # behind all ids
PRUNED_IDS = 10_000  # more ids are likely in all files


@dataclass(frozen=True, slots=True)
class File:
    """A file of the table in the log: its partition, its size in bytes, and which rows it can hold."""

    path: str
    state: str
    folded: bool
    size: int
    extent: Extent


class LedgerFiles(OpenRows):
    """The live rows of a ledger at one version, by file.

    `rows` are the control rows, `control` the paths of their files, and `growth` what they record.
    """

    def __init__(
        self, snapshot: TableSnapshot, schema: pa.Schema, cache: FileCache, before: LedgerFiles | None = None
    ) -> None:
        """Read the control rows that every microbatch needs, unless they are in the cache.

        Raises TableUnreadableError.

        Files that the commit of `before` left need not be listed again.
        """
        self._location, self.snapshot, self.schema, self._cache = snapshot.location, snapshot, schema, cache
        self._store = table_files(self._location, snapshot.table)
        left = None if before is None else before.files_after(snapshot)
        self.files = list(live_files(snapshot.table) if left is None else left)
        cache.trim({file.path for file in self.files}, folded=left is not None)
        cache.open = cache.open.in_columns_of(schema)
        self._left: list[File] | None = None
        self._writer = writer_of(self._location, schema)
        self.control = frozenset(file.path for file in self.files if file.state in tables.PRIMED)
        self.rows, self.growth = self._control_rows(None if left is None else before)

    def _control_rows(self, before: LedgerFiles | None) -> tuple[pa.Table, Growth]:
        """Return the control rows and the growth: those of `before` and what its commit added, if it only added."""
        none = empty_table(tables.control_schema(self.schema))
        known, rows, growth = frozenset[str](), none, Growth()
        if before is not None and before.control <= self.control and before.rows.schema == none.schema:
            known, rows, growth = before.control, before.rows, before.growth
        new = [self._header(file) for file in self.files if file.path in self.control - known]
        versions = pa.concat_tables([none, *(conform(table, none.schema) for table in new)]).combine_chunks()
        return apply_versions(rows, versions).combine_chunks(), growth + Growth.of(versions)

    def batches(self, batch_filter: BatchFilter | None) -> pa.Table:
        """Return the open batches needed, with messages for those that can change; None: all, with messages."""
        if batch_filter is None:
            return latest_whole(self._rows(self._of(tables.OPEN)))
        batches, can_change = self._headers(batch_filter).needed(batch_filter)
        changing = np.flatnonzero(can_change)
        at = np.full(batches.num_rows, -1)
        at[changing] = np.arange(changing.size)
        read = self._messages_of_batches(combine_chunks(batches["id"].take(pa.array(changing))))
        batches = conform(batches, self.schema)
        batches = with_messages(batches, read.take(pa.array(at, mask=at < 0)))
        tables.require_filled(batches.take(pa.array(changing)), [MESSAGES])
        return batches

    def needed_messages(self, batch_filter: BatchFilter) -> int:
        """Count the messages of the open batches that can change."""
        batches, changing = self._headers(batch_filter).needed(batch_filter)
        return int(pc.sum(filter_rows(batches, boolean_array(changing))["message_count"]).as_py() or 0)

    def _headers(self, batch_filter: BatchFilter) -> Headers:
        """Return the headers of the open batches that match, and perhaps of others.

        If an earlier version of a batch matches, so does the latest one, because windows only shrink.
        """
        headers, files = self._cache.open, self._of(tables.OPEN)
        reach = FilePruner(batch_filter) if len(files) > 1 else None
        headers.add(
            {
                file.path: self._header(file)
                for file in files
                if file.path not in headers.files
                and (reach is None or file.size < SMALL_BYTES or reach.may_hold(file.extent))
            }
        )
        self._cache.headers.forget(file.path for file in files if file.size >= SMALL_BYTES)
        return headers

    def _messages_of_batches(self, ids: pa.Array) -> pa.ChunkedArray:
        """Return the messages of open batches, from all versions that each consists of."""
        type_ = self.schema.field(MESSAGES).type
        if not len(ids):
            return pa.chunked_array([], type_)
        file, row, start = self._cache.open.parts_of(ids)
        paths = {number: path for path, number in self._cache.open.files.items()}
        lists = self._messages(paths, file, row, type_)
        return lists if start.size > file.size else pa.chunked_array([concatenate_lists(lists, start)])

    def _messages(self, paths: Mapping[int, str], file: Ints, row: Ints, type_: pa.DataType) -> pa.ChunkedArray:
        """Return the messages of versions of open batches, each at a row of a file."""
        order = np.argsort(file, kind="stable")
        numbers, start = np.unique(file[order], return_index=True)
        parts = [
            self._messages_of(paths[number], row[rows]).cast(type_)
            for number, rows in zip(numbers.tolist(), np.split(order, start[1:]), strict=True)
        ]
        chunks = [chunk for part in parts for chunk in part.chunks]
        back = np.empty(order.size, np.int64)
        back[order] = np.arange(order.size)
        return pa.chunked_array(chunks, type_).take(pa.array(back))

    def _messages_of(self, path: str, rows: Ints) -> pa.ChunkedArray:
        """Return the messages of some rows of a file; if it is not in memory, read only their row groups."""
        known = self._cache.messages.rows.get(path)
        if known is not None:
            return known.take(pa.array(rows))
        return self._cache.groups.messages(path, rows, self._open_file)

    def of_state(self, state: str, columns: pa.Schema, id_filter: IdFilter | None = None) -> pa.Table:
        """Return the `id` and the columns of the rows of a state, all or those that match."""
        files = self._of(state)
        if id_filter is not None and len(id_filter.ids) <= PRUNED_IDS:
            ranges = id_filter.ranges()
            files = [file for file in files if file.size < SMALL_BYTES or file.extent.may_hold(ranges)]
        schema = pa.schema([pa.field("id", pa.string()), *columns])
        both = pa.schema([*schema, pa.field("revision", pa.int64()), pa.field(tables.DELETED, pa.bool_())])
        parts = (conform(self._part(file), both) for file in files)
        if id_filter is not None:
            parts = (id_filter.among(part) for part in parts)
        return latest(pa.concat_tables([empty_table(both), *parts])).select(schema.names)

    def passed_window_ends(self, passed: Floors) -> Floors:
        """Return, by source, the last end of an open window that the source's clock has passed."""
        return last_window_ends(self._headers(BatchFilter(no_messages, passed)).select("source", "window_end"), passed)

    def commit(self, new: Sequence[pa.Table], written: Sequence[WrittenFile], note: Mapping[str, str]) -> int:
        """Add the rows of one revision, new ones and those that tasks have written; return how many were added.

        Raises CommitFailedError if others committed since prime, ConcurrentCommitError if that cannot be checked.
        """
        added: list[tuple[WrittenFile, File | None]] = []
        for state in dict.fromkeys(state for rows in new for state in rows[BY].unique().to_pylist()):
            added += self._write_files(state, [rows.filter(pc.equal(rows[BY], state)) for rows in new])
        files = [*(file for file, _ in added), *written]
        self._commit([_action(file) for file in files], [], note)
        # guard: files-of-tasks-are-listed
        self._left = None if written else [*self.files, *(file for _, file in added if file is not None)]
        return sum(file.row_count for file in files)

    def fold(self, fold: Fold, open_messages: int, note: Mapping[str, str]) -> None:
        """Replace live rows with those that count: all of them, or what the latest commits wrote.

        A large fold records that the open batches have `open_messages`. Raises CommitFailedError if others committed
        since prime, ConcurrentCommitError if that cannot be checked.
        """
        large, files = fold == "large", self.files if fold == "large" else self._list_unfolded()
        added: list[tuple[WrittenFile, File | None]] = []
        for state in dict.fromkeys(file.state for file in files):
            for versions in self._by_id([file for file in files if file.state == state]):
                # guard: small-fold-keeps-tombstones
                rows = latest(versions, keep_tombstones=not large)
                if state == tables.PROGRESS:
                    rows = record_growth(rows, Growth.of(versions).after_fold(fold, open_messages))
                added += self._write_files(state, [rows], folded=large)
                self._cache.trim({*(file.path for file in self.files), *(file.path for file, _ in added)})
        self._commit([_action(file, changes=False) for file, _ in added], files, note)
        stay = [file for file in self.files if file not in files]
        self._left = [*stay, *(file for _, file in added if file is not None)]

    def _by_id(self, files: Sequence[File]) -> Iterator[pa.Table]:
        """Yield the rows of files of a state, those of some ids at a time, so that they need not fit into memory.

        Control rows are few, and are yielded at once.
        """
        cuts = [] if files[0].state in tables.PRIMED else _cuts(files)
        for ids in pairwise(["", *cuts, LAST_ID]):
            parts = [_within(self._part(file), ids) for file in files if file.extent.may_hold([ids])]
            yield pa.concat_tables(parts, promote_options="default")

    def _list_unfolded(self) -> list[File]:
        """Return the files for a small fold: for each state, those of the latest commits, as long as sizes are alike.

        A file waits until the later ones together are `ALIKE` times as large, so no row is rewritten too often. A fold
        joins the messages of a batch without gaps, so a file whose revisions overlap those of later files is taken too.
        """
        chosen = []
        for state in {file.state for file in self.files}:
            files = [file for file in self.files if file.state == state and not file.folded]
            files.sort(key=lambda file: file.extent.last_revision, reverse=True)
            alike, later, since = 0, 0, FAR
            for number, file in enumerate(files, start=1):
                # guard: small-fold-leaves-no-gap
                between = alike == number - 1 and file.extent.last_revision >= since
                if between or file.size <= max(SMALL_BYTES, later / ALIKE):
                    alike = number
                later += file.size
                since = min(since, file.extent.first_revision)
            chosen += files[:alike] if alike > 1 else []
        return chosen

    def _commit(self, added: Sequence[AddAction], folded: Sequence[File], note: Mapping[str, str]) -> None:
        """Add files, and remove those that a fold replaces, if the handle of prime is still at the latest version."""
        if not self.snapshot.stands():
            raise ConcurrentCommitError(
                f"the ledger at {self._location} was restored, recreated or reloaded since it was primed",
                "Nothing was written.",
            )
        table, at = self.snapshot.table, _now()
        removed = [RemoveAction(file.path, False, at, file.size, partition(file.state, file.folded)) for file in folded]
        table.create_write_transaction(
            [*added, *removed],
            "append",
            table.schema(),
            partition_by=list(tables.PARTITIONS),
            # guard: primed-version-only
            commit_properties=CommitProperties(max_commit_retries=0, custom_metadata=dict(note)),
            post_commithook_properties=UNTRIMMED,
        )

    def files_after(self, snapshot: TableSnapshot) -> list[File] | None:
        """Return the live files that a commit left (listing them is slow), None if others have committed too."""
        follows = snapshot.table is self.snapshot.table and snapshot.version == self.snapshot.version + 1
        return self._left if follows else None

    def _of(self, state: str) -> list[File]:
        return [file for file in self.files if file.state == state]

    def _rows(self, files: Iterable[File]) -> pa.Table:
        parts = [self._part(file) for file in files]
        return pa.concat_tables([empty_table(self.schema), *parts]).combine_chunks()

    def _part(self, file: File) -> pa.Table:
        """Return the rows of a file in the ledger's columns; columns that the file leaves out are NULL."""
        if file.state != tables.OPEN:
            return self._header(file)
        if file.path not in self._cache.messages.rows:
            self._read(file)
        return with_messages(self._header(file), self._cache.messages.rows[file.path])

    def _header(self, file: File) -> pa.Table:
        """Return the rows of a file; open batches without their messages. A small file is read in one request."""
        if file.path not in self._cache.headers.rows:
            self._read(file, messages=file.state != tables.OPEN or file.size < SMALL_BYTES)
        return self._cache.headers.rows[file.path]

    def _read(self, file: File, messages: bool = True) -> None:
        """Read a file into memory; without `messages`, only the headers of open batches."""
        content = self._content(file.path, [name for name in self.schema.names if messages or name != MESSAGES])
        columns: dict[str, object] = {name: content[name] for name in content.column_names}
        columns |= {BY: file.state, "folded": file.folded}
        rows = tables.rows(self._columns_of(file.state, content), columns, content.num_rows)
        if file.state == tables.OPEN and messages:
            tables.require_filled(
                filter_rows(rows, pc.invert(pc.fill_null(rows[tables.DELETED], boolean_scalar(False)))), [MESSAGES]
            )
            rows = self._headers_of(file.path, rows)
        self._cache.headers.rows[file.path] = rows

    def _headers_of(self, path: str, batches: pa.Table) -> pa.Table:
        """Return the headers of the batches in a file; their messages stay in memory separately."""
        self._cache.messages.rows[path] = batches[MESSAGES]
        none = pa.nulls(batches.num_rows, batches.schema.field(MESSAGES).type)
        return with_messages(batches, pa.chunked_array([none]))

    def _columns_of(self, state: str, content: pa.Table) -> pa.Schema:
        """Return the columns of the rows of a state: all for open batches, for others only those in their file.

        The ledger of a topology has the columns of all states, and a million rows with all of them fill gigabytes.
        """
        if state == tables.OPEN:
            return self.schema
        kept = {*content.column_names, *tables.PARTITIONS, *(name for name, _ in tables.ROW_FIELDS)}
        return pa.schema([field for field in self.schema if field.name in kept])

    def _content(self, path: str, columns: Sequence[str]) -> pa.Table:
        """Return the rows of a file, with those of the columns that it has."""
        with self._open_file(path) as parquet:
            has = parquet.schema_arrow.names
            return to_plain_types(parquet.read(columns=[name for name in columns if name in has]))

    @contextmanager
    def _open_file(self, path: str) -> Iterator[pq.ParquetFile]:
        with translate_read_errors(self._location, "ledger"):
            try:
                with self._store.open_input_file(path) as opened:
                    yield pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            except pa.ArrowException as error:
                raise OSError(f"{path}: {first_line(error)}") from error

    def _write_files(
        self, state: str, parts: Sequence[pa.Table], folded: bool = False
    ) -> Iterator[tuple[WrittenFile, File | None]]:
        """Write the rows of a state; yield each written file, and the File if live, whose rows stay in memory."""
        for piece in pieces(state, parts):
            file, content = self._writer.write(self._store, state, piece, folded)
            yield file, None if state in tables.FINAL else self._cache_file(file, content, piece)

    def _cache_file(self, file: WrittenFile, content: pa.Table, rows: pa.Table) -> File:
        """Keep the rows of a written file in memory; `content` has the columns that are in it."""
        at = rows.schema.get_field_index("folded")
        rows = rows.set_column(at, rows.schema.field(at), pa.repeat(boolean_scalar(file.folded), rows.num_rows))
        rows = self._headers_of(file.path, rows) if file.state == tables.OPEN else rows
        self._cache.headers.rows[file.path] = rows = conform(rows, self._columns_of(file.state, content))
        return File(file.path, file.state, file.folded, file.size, Extent.of_rows(rows))


def _action(file: WrittenFile, changes: bool = True) -> AddAction:
    """Return the action that adds a file. Unless it `changes` something, its rows were in the table before."""
    return AddAction(file.path, file.size, file.partition, _now(), changes, file.statistics)


def writer_of(location: str, schema: pa.Schema, options: Mapping[str, str] | None = None) -> FileWriter:
    """Return the writer for files of the ledger at a location; `options` are those of its object store."""
    return FileWriter(location, frozenset(tables.control_schema(schema).names), options)


def live_files(table: DeltaTable) -> Iterator[File]:
    """Yield the files of live rows."""
    added = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    # guard: live-rows-only
    live = added.filter(tables.is_live(added[STATE]))
    names = [name for name in ("path", STATE, FOLDED, "size_bytes", *STATISTICS) if name in live.column_names]
    for row in times_to_numbers(live.select(names)).to_pylist():
        yield File(row["path"], row[STATE], row[FOLDED], row["size_bytes"], Extent.of(row))


def _cuts(files: Sequence[File]) -> list[str]:
    """Return ids that cut the rows of files into parts of about `FOLD_BYTES`; none if a file has unknown ids."""
    cuts, size, start = list[str](), 0, ""
    for ids, file_size in sorted((file.extent.ids or ("", ""), file.size) for file in files):
        start = start or ids[0]
        if size > FOLD_BYTES and ids[0] > start:
            cuts.append(start := ids[0])
            size = 0
        size += file_size
    return cuts if all(file.extent.ids for file in files) else []


def _within(rows: pa.Table, ids: Range) -> pa.Table:
    """Return the rows with an id in a range."""
    if ids == ("", LAST_ID):
        return rows
    first, stop = map(string_scalar, ids)
    return filter_rows(rows, pc.and_(pc.greater_equal(rows["id"], first), pc.less(rows["id"], stop)))


def _now() -> int:
    """Return the time in milliseconds, as Delta's log records it."""
    return time.time_ns() // 1_000_000

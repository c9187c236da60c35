"""Read and replace the live rows of a ledger file by file, and commit with one transaction of delta-rs.

A MERGE would join all live rows with the new ones to find out which rows it replaces. The microbatch has read the live
rows and knows in which files they are. So new files are written with Arrow, and one transaction of delta-rs adds them
and removes the files whose rows changed. The unchanged rows of these files are written again.

The fence: every commit replaces the file of the progress row, and delta-rs refuses to remove a file that a commit since
prime has removed. It compares with the version of the table handle. So each engine has a separate handle, and nothing
is committed if the handle has moved on since prime or if the log has another entry for that version.

Open batches are kept in files of about `OPEN_BYTES`, in the order of their ids and so of their streams. The log's
statistics show whether a file can hold a stream, and when its first window ends. So a microbatch that changes few of
many open batches reads and writes few files. Final rows are added in files of at most `FINAL_BYTES`.

A file leaves out columns that are NULL in all of its rows: Delta's readers fill them in. Columns of batches whose
values repeat get a dictionary. Building one and then giving it up took two fifths of the time of writing. Most times
and sequences occur once, so they get none; for payloads a sample decides.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from windrow.columnar.arrow import counted, in_columns, no_rows, plain, where
from windrow.delta.statistics import statistics
from windrow.delta.table import UNTRIMMED, Snapshot, reading, table_files
from windrow.errors import LedgerMoved, first_line
from windrow.ledger.live import ended_in
from windrow.ledger.pruning import STATISTICS, Extent, FilePruner
from windrow.ledger.result import CommitCounts
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.open_batches import BatchFilter, no_streams

BY = "state"
STATE = f"partition.{BY}"  # in the add actions of delta-rs

OPEN_BYTES = 4_000_000  # in memory
SMALL_BYTES = 100_000  # on disk
FINAL_BYTES = 256_000_000
KEPT_BYTES = 128_000_000
OVERLAPS = 16  # files of a topology's state, before all are written again in the order of ids
SAMPLED = 1_000  # batches whose payloads decide whether a dictionary is worthwhile
ELEMENT = "messages.list.element."
PLAIN = ("event_time", "received_at", "sequence")
PRUNED_IDS = 10_000  # more ids are likely in all files


@dataclass(frozen=True, slots=True)
class File:
    """A file of the table in the log: its size in bytes, and which rows it can hold."""

    path: str
    state: str
    size: int
    extent: Extent


class LedgerFiles:
    """The live rows of a ledger at one version, by file; those that were read can be replaced."""

    def __init__(self, snapshot: Snapshot, schema: pa.Schema, before: LedgerFiles | None = None) -> None:
        """Read all live rows but the open batches, and not again what `before` has read. Raises TableUnreadable."""
        self._location, self.snapshot, self._schema = snapshot.location, snapshot, schema
        self._store = table_files(self._location, snapshot.table)
        left = None if before is None else before.left_at(snapshot)
        self.files = list(live_files(snapshot.table, schema.names) if left is None else left)
        self._open = [file for file in self.files if file.state not in tables.CONTROL]
        cached = {} if before is None else before.cached
        self.cached: dict[str, pa.Table] = still_cached(cached, [file.path for file in self.files])
        self._read: dict[str, pa.Table] = {}
        self._left: list[File] | None = None
        self.rows = self._rows(file for file in self.files if file.state in tables.CONTROL)

    def wanted(self, wanted: BatchFilter | None) -> pa.Table:
        """Return the open batches that match, all for None, and the others in the same files."""
        files = self._open
        if wanted is not None and len(files) > 1:
            reach = FilePruner(wanted)
            files = [file for file in files if file.size < SMALL_BYTES or reach.may_hold(file.extent)]
        return self._rows(files)

    def of_state(self, state: str, columns: pa.Schema, ids: pa.Array | None = None) -> pa.Table:
        """Return the `id` and the columns of the rows of a topology's state, all or those with the given ids."""
        files = [file for file in self._open if file.state == state]
        if ids is not None and len(ids) <= PRUNED_IDS:
            ordered = sorted(ids.to_pylist())
            files = [file for file in files if file.size < SMALL_BYTES or file.extent.may_hold(ordered)]
        wanted = pa.schema([pa.field("id", pa.string()), *columns])
        rows = pa.concat_tables([no_rows(wanted), *(in_columns(self._part(file), wanted) for file in files)])
        return rows if ids is None else rows.filter(pc.is_in(rows["id"], ids))

    def ended(self, passed: Floors) -> Floors:
        """Return, by source, the last end of an open window that the source's clock has passed."""
        return ended_in(self.wanted(BatchFilter(no_streams, passed)), passed)

    def replace(self, new: Sequence[pa.Table], note: Mapping[str, str]) -> CommitCounts:
        """Commit `new` rows in place of the rows with the same ids that were read; rows of state `gone` only remove.

        Raises CommitFailedError if others committed since prime, LedgerMoved if that cannot be checked.
        """
        replaced = self._having(pa.chunked_array([chunk for rows in new for chunk in rows["id"].chunks], pa.string()))
        written = [where(rows, pc.not_equal(rows[BY], tables.GONE)) for rows in new]
        changed = {path for path, mask in replaced.items() if pc.any(mask).as_py()}
        states = list(dict.fromkeys(state for rows in written for state in rows[BY].unique().to_pylist()))
        touched = self._touched(changed, set(states))
        added: list[tuple[AddAction, File | None]] = []
        for state in dict.fromkeys([*(file.state for file in touched), *states]):
            kept = [self._kept(file, replaced) for file in touched if file.state == state]
            added += self._written(state, [*kept, *(rows.filter(pc.equal(rows[BY], state)) for rows in written)])
        self._commit([action for action, _ in added], touched, note)
        stay = [file for file in self.files if file not in touched]
        self._left = [*stay, *(file for _, file in added if file is not None)]
        matched = sum(pc.sum(mask).as_py() or 0 for mask in replaced.values())
        given = sum(rows.num_rows for rows in new)
        gone = given - sum(rows.num_rows for rows in written)
        return CommitCounts(matched - gone, gone, given - matched)

    def _kept(self, file: File, replaced: Mapping[str, pa.ChunkedArray]) -> pa.Table:
        """Return the rows of a file that stay; none of a file that is only read to be written again is replaced."""
        rows, mask = self._part(file), replaced.get(file.path)
        return rows if mask is None else where(rows, pc.invert(mask))

    def _having(self, ids: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
        """Return for each file that was read which of its rows have one of the ids, in one look-up."""
        held = [part["id"] for part in self._read.values()]
        found = pc.is_in(
            pa.chunked_array([chunk for column in held for chunk in column.chunks], pa.string()), ids.combine_chunks()
        )
        begins = np.cumsum([0, *map(len, held)])
        return {path: found.slice(begins[at], len(held[at])) for at, path in enumerate(self._read)}

    def _commit(self, added: Sequence[AddAction], removed: Sequence[File], note: Mapping[str, str]) -> None:
        """Add and remove files on the handle of prime, so that delta-rs checks the commits made since then."""
        if not self.snapshot.stands():
            raise LedgerMoved(
                f"the ledger at {self._location} was restored, created again or read again since it was primed",
                "Nothing was written.",
            )
        table, at = self.snapshot.table, _now()
        table.create_write_transaction(
            [*added, *(RemoveAction(file.path, True, at, file.size, {BY: file.state}) for file in removed)],
            "append",
            table.schema(),
            partition_by=[BY],
            commit_properties=CommitProperties(custom_metadata=dict(note)),
            post_commithook_properties=UNTRIMMED,
        )

    def left_at(self, snapshot: Snapshot) -> list[File] | None:
        """Return the live files that a commit left (listing them is slow), None if others have committed too."""
        follows = snapshot.table is self.snapshot.table and snapshot.version == self.snapshot.version + 1
        return self._left if follows else None

    def _rows(self, files: Iterable[File]) -> pa.Table:
        parts = [self._part(file) for file in files]
        return pa.concat_tables([no_rows(self._schema), *parts]).combine_chunks()

    def _part(self, file: File) -> pa.Table:
        """Return the rows of a file in the ledger's columns; columns that the file leaves out are NULL."""
        part = self.cached.get(file.path)
        if part is None:
            found = self._content(file.path)
            columns: dict[str, object] = {name: found[name] for name in found.column_names} | {BY: file.state}
            part = tables.rows(self._columns_of(file.state, found), columns, found.num_rows)
            self.cached[file.path] = part
        self._read[file.path] = part
        return part

    def _columns_of(self, state: str, found: pa.Table) -> pa.Schema:
        """Return the columns of the rows of a state: for a state of a topology only those that its file has.

        The ledger of a topology has the columns of all states, and a million rows with all of them fill gigabytes.
        """
        if state in (tables.OPEN, *tables.CONTROL):
            return self._schema
        return pa.schema([field for field in self._schema if field.name == BY or field.name in found.column_names])

    def _content(self, path: str) -> pa.Table:
        with reading(self._location, "ledger"):
            try:
                with self._store.open_input_file(path) as opened:
                    return plain(pq.ParquetFile(opened, coerce_int96_timestamp_unit="us").read())
            except pa.ArrowException as error:
                raise OSError(f"{path}: {first_line(error)}") from error

    def _touched(self, changed: set[str], written: set[str]) -> list[File]:
        """Return the files to rewrite: those with changed rows, and small files of states that are written anyway.

        Without the small ones a ledger would keep many small files of batches that stay open for long. Of a topology's
        state all files are rewritten once many overlap, so that a key is looked for in few of them.
        """
        small = {file.path for file in self.files if file.size < SMALL_BYTES and file.state in written}
        crowded = {state for state in written - {tables.OPEN, *tables.CONTROL} if self._overlapping(state) > OVERLAPS}
        # guard: changed-replaces
        wanted = changed | (small & self._read.keys())
        return [file for file in self.files if file.path in wanted or file.state in crowded]

    def _overlapping(self, state: str) -> int:
        """Return how many files of a state begin before an earlier one ends."""
        bounds = sorted(file.extent.ids or ("", "") for file in self.files if file.state == state)
        ends = accumulate((last for _, last in bounds), max)
        return sum(first <= end for (first, _), end in zip(bounds[1:], ends, strict=False))

    def _written(self, state: str, parts: Sequence[pa.Table]) -> Iterator[tuple[AddAction, File | None]]:
        """Write the rows of a state, live rows in the order of ids; yield each add action, and the File if live.

        Filtering keeps the chunks, so the parts together may exceed the size of one Arrow string array. Sorting then
        combines the live rows, as the next microbatch must: if they are too many, this fails before anything is
        committed. The result is a copy, because live rows are cached and a slice would keep the closed batches in
        memory too.
        """
        filled = [part for part in parts if part.num_rows]
        if not filled:
            return
        rows = pa.concat_tables(filled, promote_options="default")
        rows = rows if state in tables.FINAL else rows.take(pc.sort_indices(rows["id"]))
        for piece in _cut(rows, FINAL_BYTES if state in tables.FINAL else OPEN_BYTES):
            yield self._write(state, piece)

    def _write(self, state: str, rows: pa.Table) -> tuple[AddAction, File | None]:
        filled = [name for name in rows.column_names if rows[name].null_count < rows.num_rows and name != BY]
        held, directory = rows.select(filled), f"{BY}={state}"
        path = f"{directory}/part-{uuid4()}.snappy.parquet"
        self._store.create_dir(directory)
        with self._store.open_output_stream(path) as opened:
            pq.write_table(held, opened, use_dictionary=with_dictionary(held))
            size = opened.tell()
        live = None
        if state not in tables.FINAL:
            self.cached[path] = rows
            live = File(path, state, size, Extent.held(rows))
        return AddAction(path, size, {BY: state}, _now(), True, statistics(held)), live


def still_cached(cache: Mapping[str, pa.Table], paths: Iterable[str], most: int = KEPT_BYTES) -> dict[str, pa.Table]:
    """Return the cached rows of these files, which never change; none if they have more than `most` bytes together."""
    kept = {path: cache[path] for path in paths if path in cache}
    return kept if sum(rows.nbytes for rows in kept.values()) <= most else {}


def live_files(table: DeltaTable, columns: Sequence[str]) -> Iterator[File]:
    """Yield the files of live rows; the ledger's `columns` decide which states are live."""
    added = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    # guard: live-rows-only
    live = added.filter(tables.are_live(added[STATE], columns))
    wanted = [name for name in ("path", STATE, "size_bytes", *STATISTICS) if name in live.column_names]
    for said in counted(live.select(wanted)).to_pylist():
        yield File(said["path"], said[STATE], said["size_bytes"], Extent.of(said))


def without_dictionary(rows: pa.Table | None) -> list[str]:
    """Return the message columns to write without a dictionary; `rows` is None if they are not on the driver."""
    if rows is not None and _has_messages(rows.schema) and _differ(rows):
        return [ELEMENT + name for name in (*PLAIN, "payload")]
    return [ELEMENT + name for name in PLAIN]


def with_dictionary(rows: pa.Table) -> list[str]:
    """Return the columns to write with a dictionary: the flat ones, and message columns that repeat."""
    flat = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    without = without_dictionary(rows)
    return flat + [name for name in (ELEMENT + "type", ELEMENT + "payload") if name not in without]


def _has_messages(schema: pa.Schema) -> bool:
    """Tell whether the rows are batches; the states of a topology may have any columns."""
    found = schema.field("messages").type if "messages" in schema.names else None
    kind = found.value_type if found is not None and pa.types.is_list(found) else None
    return kind is not None and pa.types.is_struct(kind) and kind.get_field_index("payload") >= 0


def _differ(rows: pa.Table) -> bool:
    """Tell whether most payloads in a sample of batches are distinct."""
    step = max(1, rows.num_rows // SAMPLED)
    sample = rows["messages"].take(pa.array(np.arange(0, rows.num_rows, step)))
    payloads = pc.struct_field(pc.list_flatten(sample), "payload")
    if pa.types.is_struct(payloads.type):
        return True
    return pc.count_distinct(payloads).as_py() > len(payloads) / 2


def _cut(rows: pa.Table, byte_count: int) -> Iterator[pa.Table]:
    """Cut rows into equal pieces of at most about `byte_count` bytes."""
    size = -(-rows.num_rows // max(1, -(-rows.nbytes // byte_count)))
    for begin in range(0, rows.num_rows, size):
        yield rows.slice(begin, size)


def _now() -> int:
    """Return the time in milliseconds, as Delta's log records it."""
    return time.time_ns() // 1_000_000

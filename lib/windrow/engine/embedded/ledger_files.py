"""The ledger file by file: which live rows lie in which file, and a commit that replaces just the files it touches.

A MERGE has a query engine join all live rows with the new ones, to find out what a microbatch knows already: which rows
it replaces, and since it read them where they lie. So new files are written with Arrow, and one transaction of delta-rs
adds them and removes those whose rows changed; rows of these files that did not change are written again.

The fence: every commit replaces the file of the progress row, and delta-rs refuses to remove a file that a commit since
prime has removed. It compares with the version of the handle. So the handle belongs to one engine, and where it has
moved on since prime, or the log has another entry for that version, nothing is committed.

Open batches are kept in files of about `OPEN_BYTES` in the order of their ids, and so of their streams. What the log
says of a file tells whether a stream can be in it, and when its first window ends: a microbatch that touches few of
many open batches reads and writes few files. Final rows are added in files of `FINAL_BYTES` at most.

A file holds no columns that are NULL in all of its rows: readers of Delta fill in NULL for what a file does not have.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from windrow.columnar.arrow import counted, no_rows, plain, where
from windrow.delta.statistics import statistics
from windrow.delta.table import UNTRIMMED, Snapshot, reading, table_files
from windrow.engine.embedded.encoding import repeating
from windrow.engine.embedded.pruning import SAID, Extent, Reach
from windrow.engine.protocol import Merged, ended_in
from windrow.errors import LedgerMoved, first_line
from windrow.model import tables
from windrow.model.floors import Floors
from windrow.model.step import BatchFilter, no_streams

BY = "state"
STATE = f"partition.{BY}"  # in what delta-rs says of a file

OPEN_BYTES = 4_000_000  # in memory
SMALL_BYTES = 100_000  # on disk
FINAL_BYTES = 256_000_000
KEPT_BYTES = 128_000_000


@dataclass(frozen=True, slots=True)
class File:
    """A file of the table as the log has it: its size in bytes, and what it can hold."""

    path: str
    state: str
    size: int
    extent: Extent


class Parts:
    """The rows of live files, kept from one microbatch to the next, as a file never changes; `opened` had them last."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        """Keep rows of `most` bytes at most."""
        self._most = most
        self._rows: dict[str, pa.Table] = {}
        self.opened: LedgerFiles | None = None

    def __reduce__(self) -> tuple[type[Parts], tuple[int]]:
        """Leave everything behind: another process reads for itself."""
        return Parts, (self._most,)

    def __getitem__(self, path: str) -> pa.Table | None:
        return self._rows.get(path)

    def __setitem__(self, path: str, rows: pa.Table) -> None:
        self._rows[path] = rows

    def only(self, paths: Iterable[str]) -> None:
        """Forget all other files, and these as well when they are too large together."""
        kept = {path: self._rows[path] for path in paths if path in self._rows}
        self._rows = kept if sum(rows.nbytes for rows in kept.values()) <= self._most else {}


class LedgerFiles:
    """The live rows of a ledger at one version, in the files they lie in; what was read of them can be replaced."""

    def __init__(
        self, snapshot: Snapshot, schema: pa.Schema, parts: Parts, files: Sequence[File] | None = None
    ) -> None:
        """Read all but the open batches, from `files` if it is known which these are. Raises TableUnreadable."""
        self._location, self.snapshot, self._schema, self._parts = snapshot.location, snapshot, schema, parts
        self._store = table_files(self._location, snapshot.table)
        self.files = list(live_files(snapshot.table, schema.names) if files is None else files)
        self._open = [file for file in self.files if file.state not in tables.CONTROL]
        parts.only(file.path for file in self.files)
        self._read: dict[str, pa.Table] = {}
        self.rows = self._rows(file for file in self.files if file.state in tables.CONTROL)

    def wanted(self, wanted: BatchFilter | None) -> pa.Table:
        """Return the open batches that are wanted, all for None; those that lie beside them come along."""
        files = self._open
        if wanted is not None and len(files) > 1:
            reach = Reach(wanted)
            files = [file for file in files if file.size < SMALL_BYTES or reach.into(file.extent)]
        return self._rows(files)

    def of_state(self, state: str) -> pa.Table:
        """Return the rows of one state."""
        return self._rows(file for file in self._open if file.state == state)

    def ended(self, passed: Floors) -> Floors:
        """Return the last end of a window that a clock has passed, of the sources that have one."""
        return ended_in(self.wanted(BatchFilter(no_streams, passed)), passed)

    def replace(self, new: pa.Table, note: Mapping[str, str]) -> Merged:
        """Commit `new` in place of the rows with the same ids that were read; the state `gone` only removes.

        Raises CommitFailedError for what others committed since prime, LedgerMoved where that cannot be compared.
        """
        replaced = self._having(new["id"].combine_chunks())
        written = where(new, pc.not_equal(new[BY], tables.GONE))
        changed = {path for path, mask in replaced.items() if pc.any(mask).as_py()}
        touched = self._touched(changed, set(written[BY].unique().to_pylist()))
        kept = [where(self._read[file.path], pc.invert(replaced[file.path])) for file in touched]
        written_files = list(self._written(pa.concat_tables([*kept, written])))
        self._commit([action for action, _ in written_files], touched, note)
        self._follow([file for _, file in written_files if file is not None], touched)
        matched = sum(pc.sum(mask).as_py() or 0 for mask in replaced.values())
        gone = new.num_rows - written.num_rows
        return Merged(matched - gone, gone, new.num_rows - matched)

    def _having(self, ids: pa.Array) -> dict[str, pa.ChunkedArray]:
        """Tell for each file that was read which of its rows have one of the ids, all at once: the ids may be many."""
        held = [part["id"] for part in self._read.values()]
        found = pc.is_in(pa.chunked_array([chunk for column in held for chunk in column.chunks], ids.type), ids)
        begins = np.cumsum([0, *map(len, held)])
        return {path: found.slice(begins[at], len(held[at])) for at, path in enumerate(self._read)}

    def _commit(self, added: Sequence[AddAction], removed: Sequence[File], note: Mapping[str, str]) -> None:
        """Add and remove files on the handle of prime: what was committed since is compared with what that one read."""
        if not self.snapshot.stands():
            raise LedgerMoved(
                f"the ledger at {self._location} was set back, made anew or read again since prime read it",
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

    def _follow(self, added: Sequence[File], removed: Sequence[File]) -> None:
        """Remember the live files behind the commit, unless another one came with it: to list them reads all files."""
        snapshot = self.snapshot.latest()
        if snapshot.table is self.snapshot.table and snapshot.version == self.snapshot.version + 1:
            left = [file for file in self.files if file not in removed]
            self._parts.opened = LedgerFiles(snapshot, self._schema, self._parts, [*left, *added])

    def _rows(self, files: Iterable[File]) -> pa.Table:
        parts = [self._part(file) for file in files]
        return pa.concat_tables([no_rows(self._schema), *parts]).combine_chunks()

    def _part(self, file: File) -> pa.Table:
        """Return the rows of a file in the ledger's columns; those it does not have are NULL."""
        part = self._parts[file.path]
        if part is None:
            found = self._content(file.path)
            columns: dict[str, object] = {name: found[name] for name in found.column_names}
            part = tables.rows(self._schema, columns | {BY: file.state}, found.num_rows)
            self._parts[file.path] = part
        self._read[file.path] = part
        return part

    def _content(self, path: str) -> pa.Table:
        with reading(self._location, "ledger"):
            try:
                with self._store.open_input_file(path) as opened:
                    return plain(pq.ParquetFile(opened, coerce_int96_timestamp_unit="us").read())
            except pa.ArrowException as error:
                raise OSError(f"{path}: {first_line(error)}") from error

    def _touched(self, changed: set[str], written: set[str]) -> list[File]:
        """Return the files to write again: those with changed rows, and small ones where rows are written anyway.

        Without the latter a ledger would be left with many small files of batches that stay open for long.
        """
        small = {file.path for file in self.files if file.size < SMALL_BYTES and file.state in written}
        # guard: changed-replaces
        return [file for file in self.files if file.path in changed | (small & self._read.keys())]

    def _written(self, rows: pa.Table) -> Iterator[tuple[AddAction, File | None]]:
        """Write rows to files, states apart and live rows by id; yield what the log says of each, and the live ones."""
        states = rows[BY].unique().to_pylist()
        for state, part in zip(states, _apart(rows, states), strict=True):
            for piece in _cut(part, FINAL_BYTES if state in tables.FINAL else OPEN_BYTES):
                yield self._write(state, piece)

    def _write(self, state: str, rows: pa.Table) -> tuple[AddAction, File | None]:
        filled = [name for name in rows.column_names if rows[name].null_count < rows.num_rows and name != BY]
        held, directory = rows.select(filled), f"{BY}={state}"
        path = f"{directory}/part-{uuid4()}.snappy.parquet"
        self._store.create_dir(directory)
        with self._store.open_output_stream(path) as opened:
            pq.write_table(held, opened, use_dictionary=repeating(held))
            size = opened.tell()
        live = None
        if state not in tables.FINAL:
            self._parts[path] = rows
            live = File(path, state, size, Extent.held(rows))
        return AddAction(path, size, {BY: state}, _now(), True, statistics(held)), live


def live_files(table: DeltaTable, columns: Sequence[str]) -> Iterator[File]:
    """Yield the files of live rows; `columns` are those of the ledger, which say what is live in it."""
    added = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    # guard: live-rows-only
    live = added.filter(tables.are_live(added[STATE], columns))
    wanted = [name for name in ("path", STATE, "size_bytes", *SAID) if name in live.column_names]
    for said in counted(live.select(wanted)).to_pylist():
        yield File(said["path"], said[STATE], said["size_bytes"], Extent.of(said))


def _apart(rows: pa.Table, states: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of each state, those of a live one by id.

    Rows are chosen array by array, so those of all states may be more than one array of Arrow's texts holds. Live rows
    are then put together, as the next microbatch has to do: too many of them fail here, before anything is committed.
    They are a copy of their own, because they are kept: a slice would keep the closed batches beside them in memory.
    """
    for state in states:
        chosen = rows.filter(pc.equal(rows[BY], state))
        yield chosen if state in tables.FINAL else chosen.take(pc.sort_indices(chosen["id"]))


def _cut(rows: pa.Table, byte_count: int) -> Iterator[pa.Table]:
    """Cut rows into equal parts of about so many bytes at most."""
    size = -(-rows.num_rows // max(1, -(-rows.nbytes // byte_count)))
    for begin in range(0, rows.num_rows, size):
        yield rows.slice(begin, size)


def _now() -> int:
    """Return the time of the log in milliseconds."""
    return time.time_ns() // 1_000_000

"""Write rows of a ledger to files, which a later commit adds: in this process, or in each of Spark's tasks.

Delta does not see a file before a commit adds it. So a task may run twice or die after writing: it leaves a file that
no commit adds, and `maintain` deletes that file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from windrow.delta.locations import local_path
from windrow.delta.statistics import statistics
from windrow.delta.table import files_at
from windrow.errors import TableUnwritableError, ensure
from windrow.ledger.encoding import group_rows, with_dictionary
from windrow.model import tables

OPEN_BYTES = 4_000_000  # in memory
FINAL_BYTES = 256_000_000
OF_STORES = ("AWS_", "AZURE_", "GOOGLE_")  # environment variables with delta-rs's options for an object store


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that no commit has added yet: its partition, its size in bytes, its rows, and their statistics as JSON."""

    path: str
    state: str
    folded: bool
    size: int
    row_count: int
    statistics: str

    @property
    def partition(self) -> dict[str, str | None]:
        """Return the partition as the log writes it."""
        return partition(self.state, self.folded)


@dataclass(frozen=True, slots=True)
class FileWriter:
    """Writes files of the ledger at a location. `options` are those of its object store, None for this process's own.

    Control rows have only the columns in `control`.
    """

    location: str
    control: frozenset[str]
    options: Mapping[str, str] | None = field(default=None, repr=False)

    def write(
        self, store: FileSystem, state: str, rows: pa.Table, folded: bool = False
    ) -> tuple[WrittenFile, pa.Table]:
        """Write rows of a state to a file of the table in `store`; return the file, and the rows in its columns.

        It leaves out columns that are NULL in all of its rows: Delta's readers fill them in.
        """
        within = partition(state, folded)
        filled = [name for name in rows.column_names if rows[name].null_count < rows.num_rows and name not in within]
        ensure(state not in tables.CONTROL or set(filled) <= self.control, "control rows have known columns")
        selected, directory = rows.select(filled), "/".join(f"{name}={value}" for name, value in within.items())
        path = f"{directory}/part-{uuid4()}.snappy.parquet"
        store.create_dir(directory)
        with store.open_output_stream(path) as opened:
            groups = group_rows(selected) if state == tables.OPEN else None
            pq.write_table(selected, opened, use_dictionary=with_dictionary(selected), row_group_size=groups)
            size = opened.tell()
        return WrittenFile(path, state, folded, size, rows.num_rows, statistics(selected)), selected

    def write_all(self, rows: pa.Table) -> list[WrittenFile]:
        """Write rows of any states to files."""
        store, states = files_at(self.location, self.options), rows["state"].unique().to_pylist()
        parts = {state: [rows.filter(pc.equal(rows["state"], state))] for state in states}
        return [self.write(store, state, piece)[0] for state, own in parts.items() for piece in pieces(state, own)]


def require_there(location: str, files: Iterable[WrittenFile]) -> None:
    """Raise TableUnwritableError if a file that a task has written is not on the driver's disk."""
    path = local_path(location)
    # guard: files-of-tasks-are-there
    for there, file in () if path is None else ((path / file.path, file) for file in files):
        if not there.exists() or there.stat().st_size != file.size:
            raise TableUnwritableError(
                f"a Spark task has written {there}, but the driver does not see it",
                "Nothing was committed. Put the ledger where all machines can reach it, or use commit = 'merge'.",
            )


def partition(state: str, folded: bool) -> dict[str, str | None]:
    """Return the partition of a file, as the log writes it."""
    return dict(zip(tables.PARTITIONS, (state, str(folded).lower()), strict=True))


def pieces(state: str, parts: Sequence[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of a state file by file, live rows in the order of ids.

    Filtering keeps the chunks, so the parts together may exceed the size of one Arrow string array. Sorting then
    combines the live rows, as the next microbatch must: if they are too many, this fails before anything is committed.
    The result is a copy, because live rows are cached and a slice would keep the closed batches in memory too.
    """
    filled = [part for part in parts if part.num_rows]
    if not filled:
        return
    rows = pa.concat_tables(filled, promote_options="default")
    rows = rows if state in tables.FINAL else rows.take(pc.sort_indices(rows["id"]))
    yield from _split_rows(rows, FINAL_BYTES if state in tables.FINAL else OPEN_BYTES)


def _split_rows(rows: pa.Table, byte_count: int) -> Iterator[pa.Table]:
    """Cut rows into equal pieces of at most about `byte_count` bytes."""
    size = -(-rows.num_rows // max(1, -(-rows.nbytes // byte_count)))
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def store_options() -> dict[str, str]:
    """Return this process's options for object stores, for tasks in other processes."""
    return {name: value for name, value in os.environ.items() if name.startswith(OF_STORES)}

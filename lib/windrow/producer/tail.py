"""The tail of a depot's log on a disk of this machine: where the next entry goes, written without a look at the rest.

Whoever wrote the last entry knows its number, and puts the next one behind it (`windrow.entries`). Where somebody else
was first, or the last entry is no longer the file that it was, the commit goes the usual way, which looks at what the
others did.

Only plain depots are written like this, those in which an append is nothing but files and numbers of producers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from windrow import entries
from windrow.engine.statistics import statistics
from windrow.entries import Action, Entries, Identity

DICTIONARIES = ["source", "key", "type", "payload"]  # times and numbers hardly repeat


@dataclass(frozen=True, slots=True)
class Added:
    """A file that an entry adds: its path in the table, its octets, its rows, what the log says of them."""

    path: str
    octets: int
    rows: int
    statistics: str


@dataclass(slots=True)
class Tail:
    """The last entry that this process has seen: its version, and the file that it is."""

    log: Entries
    checkpoint_every: int
    version: int
    identity: Identity

    @classmethod
    def of(cls, table: DeltaTable, location: str) -> Tail | None:
        """Return the tail of a table's log as it was opened, None where only delta-rs may write."""
        log = Entries.at(location)
        if log is None or not _is_plain(table):
            return None
        identity = log.identity(table.version())
        every = entries.checkpoint_interval(table)
        return None if identity is None else cls(log, every, table.version(), identity)

    def append(self, rows: pa.Table, numbers: Mapping[str, int], said: Mapping[str, str]) -> int | None:
        """Add messages with the numbers of applications, and what the commit `said`; return the version of it.

        None where somebody else was first, or the log is another one: then nothing was added. Raises OSError.
        """
        if not self.log.holds(self.version, self.identity):
            return None
        name = f"part-{uuid4()}.snappy.parquet"
        written = self.log.root / name
        pq.write_table(rows, written, use_dictionary=DICTIONARIES)
        version = self.add([Added(name, written.stat().st_size, rows.num_rows, statistics(rows))], numbers, said)
        if version is None:
            written.unlink()
        return version

    def add(self, files: Sequence[Added], numbers: Mapping[str, int], said: Mapping[str, str]) -> int | None:
        """Add files that lie in the table's directory already; for the rest as `append`."""
        identity = self.log.put(_actions(files, numbers, said), self.version, self.identity)
        if identity is None:
            return None
        self.version, self.identity = self.version + 1, identity
        return self.version

    @property
    def wants_checkpoint(self) -> bool:
        """Tell whether a checkpoint is due at the last entry."""
        return self.version % self.checkpoint_every == 0


def _is_plain(table: DeltaTable) -> bool:
    """Tell whether an append to a table is nothing but files and numbers of applications."""
    whole = not table.metadata().partition_columns and all(field.nullable for field in table.schema().fields)
    return whole and entries.is_plain(table)


def _actions(files: Sequence[Added], numbers: Mapping[str, int], said: Mapping[str, str]) -> list[Action]:
    now = entries.now()
    rows = sum(file.rows for file in files)
    metrics = {"num_added_files": len(files), "num_removed_files": 0, "num_partitions": 0, "num_added_rows": rows}
    about: dict[str, Any] = entries.commit_info({"mode": "Append"}, said, now)
    return [
        {"commitInfo": about | {"operationMetrics": metrics}},
        *(entries.number(name, number, now) for name, number in numbers.items()),
        *(entries.add(file.path, file.octets, {}, file.statistics, now) for file in files),
    ]

"""The tail of a depot's log on a disk of this machine: where the next entry goes, written without a look at the rest.

delta-rs lists the log twice for each commit, so that in two thousand commits one becomes three times as slow. Whoever
wrote the last entry knows its number. So a complete entry is linked under the next number, which is what delta-rs does
as well and what only one can do: where that number is taken, or the last entry is no longer the file that it was, the
commit goes the usual way, which looks at what the others did.

Only plain depots are written like this, those in which an append is nothing but files and numbers of producers.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from windrow.engine.statistics import statistics
from windrow.locations import local_path
from windrow.version import VERSION

PLAIN_VERSION = 4  # up to this writer version all that a table may want of an append stands in schema and properties
DICTIONARIES = ["source", "key", "type", "payload"]  # times and numbers hardly repeat
USUAL_INTERVAL = 100  # commits between two checkpoints, where the table says nothing that makes sense
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # a log on another disk, a disk without links
Stamp = tuple[int, int, int]


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

    root: Path
    checkpoint_every: int
    version: int
    stamp: Stamp

    @classmethod
    def of(cls, table: DeltaTable, location: str) -> Tail | None:
        """Return the tail of a table's log as it was opened, None where only delta-rs may write."""
        root = local_path(location)
        if root is None or not _is_plain(table):
            return None
        stamp = _stamp(_entry(root, table.version()))
        said = table.metadata().configuration.get("delta.checkpointInterval", "").strip()
        every = int(said) if said.isdecimal() and int(said) else USUAL_INTERVAL
        return None if stamp is None else cls(root, every, table.version(), stamp)

    def append(self, rows: pa.Table, numbers: Mapping[str, int], said: Mapping[str, str]) -> int | None:
        """Add messages with the numbers of applications, and what the commit `said`; return the version of it.

        None where somebody else was first, or the log is another one: then nothing was added. Raises OSError.
        """
        if not self._is_last():
            return None
        name = f"part-{uuid4()}.snappy.parquet"
        written = self.root / name
        pq.write_table(rows, written, use_dictionary=DICTIONARIES)
        version = self.add([Added(name, written.stat().st_size, rows.num_rows, statistics(rows))], numbers, said)
        if version is None:
            written.unlink()
        return version

    def add(self, files: Sequence[Added], numbers: Mapping[str, int], said: Mapping[str, str]) -> int | None:
        """Add files that lie in the table's directory already; for the rest as `append`."""
        version = self.version + 1
        if not self._is_last() or not self._link(version, _actions(files, numbers, said)):
            return None
        self.version, self.stamp = version, _identity(_entry(self.root, version))
        return version

    @property
    def wants_checkpoint(self) -> bool:
        """Tell whether a checkpoint is due at the last entry."""
        return self.version % self.checkpoint_every == 0

    def _is_last(self) -> bool:
        """Tell whether the last entry is still the file that it was; whether another one came is seen by linking."""
        return _stamp(_entry(self.root, self.version)) == self.stamp

    def _link(self, version: int, actions: list[dict[str, Any]]) -> bool:
        """Give an entry its number when it is whole; tell whether it has it. Raises OSError when that is not known.

        A file system on a network may say of a link that it made, and of which the reply was lost, that it is there.
        """
        written = self.root / f"entry-{uuid4()}.tmp"
        try:
            written.write_text("\n".join(map(json.dumps, actions)) + "\n", encoding="utf-8")
            if not self._is_last():
                return False
            os.link(written, _entry(self.root, version))
        except FileExistsError:
            return written.samefile(_entry(self.root, version))
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return False
        else:
            return True
        finally:
            written.unlink(missing_ok=True)


def _is_plain(table: DeltaTable) -> bool:
    """Tell whether an append to a table is nothing but files and numbers of applications."""
    protocol, metadata = table.protocol(), table.metadata()
    return (
        protocol.min_writer_version <= PLAIN_VERSION
        and not metadata.partition_columns
        and not any(name.startswith("delta.constraints.") for name in metadata.configuration)
        and not any(field.metadata or not field.nullable for field in table.schema().fields)
    )


def _actions(files: Sequence[Added], numbers: Mapping[str, int], said: Mapping[str, str]) -> list[dict[str, Any]]:
    now = time.time_ns() // 1_000_000
    rows = sum(file.rows for file in files)
    metrics = {"num_added_files": len(files), "num_removed_files": 0, "num_partitions": 0, "num_added_rows": rows}
    about: dict[str, Any] = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    return [
        {"commitInfo": about | {"engineInfo": f"windrow:{VERSION}", **said, "operationMetrics": metrics}},
        *({"txn": {"appId": name, "version": number, "lastUpdated": now}} for name, number in numbers.items()),
        *({"add": _add(file, now)} for file in files),
    ]


def _add(file: Added, now: int) -> dict[str, Any]:
    added = {"path": file.path, "partitionValues": {}, "size": file.octets, "modificationTime": now}
    return added | {"dataChange": True, "stats": file.statistics}


def _entry(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020}.json"


def _stamp(entry: Path) -> Stamp | None:
    try:
        return _identity(entry)
    except OSError:
        return None


def _identity(entry: Path) -> Stamp:
    found = entry.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns

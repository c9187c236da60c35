"""Check the storage of the tables and its guarantees, and this machine's clock against their commits and stamps.

docs/design.md has the same table of storage types in words.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.delta.locations import is_catalog_name, local_path
from windrow.delta.table import history
from windrow.model.durations import UNITS, format_duration
from windrow.model.timestamps import time_text
from windrow.operate.doctor.finding import Finding, error, ok, warning
from windrow.operate.doctor.opened import OpenDepot
from windrow.reading.tables import TableLog

MOUNTS = Path("/proc/mounts")
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "glusterfs", "lustre", "beegfs", "afs"}
VOLATILE = {"tmpfs", "ramfs"}
PUT_IF_ABSENT = {
    "s3", "s3a", "s3n", "hdfs", "abfs", "abfss", "wasb", "wasbs", "az", "adl", "azure", "gs", "gcs",
}  # fmt: skip
MIN_FREE_BYTES = 1 << 30
TOLERANCE_US = 5 * UNITS["s"]  # a guess: clocks set by NTP differ less
STAMPS = "max.received_at"
LOST = {
    "depot": "Restore them from a copy. The ledger has the messages that it has read.",
    "ledger": "Restore them from a copy; or make a new ledger from the depot (`windrow replay --into`).",
}


def check_storage(role: str, location: str) -> Iterator[Finding]:
    """Check the location of a depot or a ledger."""
    if (path := local_path(location)) is None:
        yield _elsewhere(role, location)
        return
    mounts = MOUNTS.read_text(encoding="utf-8", errors="replace") if MOUNTS.exists() else ""
    yield _local(role, path.resolve(), file_system_type(path.resolve(), mounts))
    yield from _room(role, path.resolve())


def check_data_files(role: str, table: DeltaTable) -> Iterator[Finding]:
    """Compare the data files that the log of a local table names with those that exist."""
    root = local_path(table.table_uri)
    if root is None:
        return
    added = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes"]).to_pylist()
    files = [(root / unquote(file["path"]), file["size_bytes"]) for file in added]
    wrong = [file.name for file, size in files if not file.exists() or file.stat().st_size != size]
    if wrong:
        message = f"{len(wrong):,} of {len(added):,} data files are gone or have another size, such as {wrong[0]}"
        yield error("storage-files", f"{role}: {message}", LOST[role])
    else:
        yield ok("storage-files", f"{role}: all {len(added):,} data files are present")


def check_commits(role: str, table: TableLog, version: int, now: int) -> Iterator[Finding]:
    """Check that the last commit is not in the future, which means that this clock or the writer's is wrong."""
    commits = history(table, version) if isinstance(table, DeltaTable) else table.history(version)
    stamp = next(iter(commits)).get("timestamp")
    ahead = 0 if stamp is None else int(stamp) * 1_000 - now
    if ahead <= TOLERANCE_US:
        yield ok("clock-commits", f"the wall clock, {time_text(now)}, is not behind the latest commit of the {role}")
        return
    message = f"the latest commit of the {role} is {_seconds(ahead)} in the future by this machine's clock"
    hint = "Set the clock (NTP) here or on the writer: idle sources and clock_ahead depend on the wall clock."
    yield warning("clock-commits", message, hint)


def check_stamps(depot: OpenDepot) -> Iterator[Finding]:
    """Check for stamps more than `max_clock_skew` ahead of the wall clock, whose messages are rejected."""
    if not isinstance(depot.table, DeltaTable) or "received_at" in depot.settings.depot_columns:
        return
    files = pa.table(depot.table.get_add_actions(flatten=True))
    if STAMPS not in files.column_names or not pa.types.is_timestamp(files[STAMPS].type):
        return
    latest = pc.max(files[STAMPS].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())).as_py()
    if latest is not None and latest - depot.now > depot.settings.max_clock_skew:
        message = f"the depot has messages stamped up to {_seconds(latest - depot.now)} ahead of the wall clock"
        hint = "They are rejected as clock_ahead if they are read before then. Set the clock of the writer."
        yield warning("clock-stamps", message, hint)


def file_system_type(path: Path, mounts: str) -> str | None:
    """Return the type of a path's file system according to /proc/mounts; None if that does not say."""
    lines = [line.split(" ") for line in mounts.splitlines()]
    points = [(Path(point.replace("\\040", " ")), kind) for _, point, kind, *_ in lines]
    above = [
        (len(point.parts), order, kind) for order, (point, kind) in enumerate(points) if path.is_relative_to(point)
    ]
    return max(above)[2] if above else None


def _local(role: str, path: Path, kind: str | None) -> Finding:
    where = f"{role}: {path}" + (f" ({kind})" if kind else "")
    if kind in NETWORK or (kind or "").startswith("fuse."):
        message = f"{where} is on a network file system, whose locks and renames may not exclude other machines"
        return warning("storage", message, "Use one process per table there, or a local disk, or an object store.")
    if kind in VOLATILE:
        return warning("storage", f"{where} is lost when the machine stops", "Move it to a disk, unless it is a trial.")
    return ok("storage", f"{where}, a local disk; Windrow's own writers exclude each other by .{path.name}.lock")


def _elsewhere(role: str, location: str) -> Finding:
    scheme = location.partition(":")[0].lower()
    if is_catalog_name(location):
        return ok(
            "storage",
            f"{role}: {location}, a catalog table: the catalog decides where it is and how writers exclude each other",
        )
    if scheme in PUT_IF_ABSENT:
        return ok("storage", f"{role}: {location}, whose put-if-absent lets one of two commits win")
    hint = "Use one engine and one driver per table, unless its put-if-absent is atomic."
    return warning("storage", f"{role}: {location}: the guarantees of {scheme!r} are unknown", hint)


def _room(role: str, path: Path) -> Iterator[Finding]:
    """Check that a table and its lock file can be written, and that there is free space."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    beside = path.parent if path.parent.exists() else there
    if not all(os.access(folder, os.W_OK | os.X_OK) for folder in (there, beside)):
        hint = "Change the permissions: commits write the table, and a lock file in the folder above."
        yield error("storage-access", f"{role}: {there} or the folder above cannot be written", hint)
    free = shutil.disk_usage(there).free
    if free < MIN_FREE_BYTES:
        message = f"{role}: {free / (1 << 20):,.0f} MiB are free on its disk"
        yield warning("storage-space", message, "Free some space: a commit without space fails and writes nothing.")


def _seconds(microseconds: int) -> str:
    return format_duration(microseconds // UNITS["s"] * UNITS["s"])

"""Check the files of a table against its log: read every column of every live file once, and compare with its entry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileSystem

from windrow.columnar.arrow import counted, plain
from windrow.delta.row_changes import parquet_file, row_groups
from windrow.delta.table import FAULTS, reading, table_files
from windrow.errors import first_line
from windrow.model import tables
from windrow.verify.log import Log, read_log
from windrow.verify.report import Difference, Found, at_version, differing

OF_A_VERSION = re.compile(r"_delta_log/\.?(\d{20})\..*")
STATES = (tables.OPEN, tables.PROGRESS, "partial", *tables.FINAL)
MILLISECOND = 1_000  # Spark truncates the times in a file's statistics to milliseconds


def check_table(
    table: DeltaTable,
    location: str,
    role: str,
    wanted: Sequence[DeltaTable] = (),
    begin: str = "",
    microbatch: int | None = None,
) -> tuple[list[Found], Log]:
    """Check the end of a table's log, and its live files at the `wanted` versions (default: the latest).

    `begin` and `microbatch` say which files may be those of lost commits (`unnamed`). Returns also the log.
    """
    log, read = read_log(table, location, role), set[str]()
    found = at_version(table.version(), check_end(table, location, role))
    for handle in wanted or [table]:
        found += at_version(handle.version(), check_files(handle, location, role, log, read))
    lost = unnamed(table, location, log, begin, microbatch)
    found += [
        f"whether the last commits of the {role} are there: no entry of its log names {first}, nor {len(lost) - 1} "
        "other files; either they were not committed, or the entry is gone"
        for first in lost[:1]
    ]
    return found, log


def check_states(table: DeltaTable) -> Iterator[Difference]:
    """Check that the ledger of a batcher has only rows of its own states."""
    files = plain(pa.table(table.get_add_actions(flatten=True))).select(["partition.state", "path"])
    foreign = files.filter(pc.invert(pc.is_in(files["partition.state"], pa.array(STATES))))
    rows = foreign.rename_columns(["state", "file"])
    yield from differing("states", f"only rows of {', '.join(STATES)}", rows, "files of other states")


def check_files(table: DeltaTable, location: str, role: str, log: Log, read: set[str]) -> Iterator[Difference]:
    """Check the live files of a table at the version of its handle, except those already in `read`.

    Raises TableUnreadable for the first file that exists and cannot be read in full.
    """
    with reading(location, role):
        listed = plain(pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all())
        entries = counted(listed).to_pylist()
    store, wrong = table_files(location, table), []
    for file in entries:
        path = unquote(file["path"])
        if path not in read and ":" not in path.split("/")[0]:  # a clone names files of its origin by their address
            read.add(path)
            with reading(location, role):
                why = _why_wrong(store, path, file, log.rows.get(path))
            wrong += [{"table": role, "file": path, "why": why}] if why else []
    expected = f"each file of the {role} can be read in full and holds what the log says of it"
    yield from differing("files", expected, pa.Table.from_pylist(wrong), "files")


def check_end(table: DeltaTable, location: str, role: str) -> Iterator[Difference]:
    """Check that no file of a log has a later version than its last entry. The handle is at the latest version."""
    latest, store = table.version(), table_files(location, table)
    names = [info.path for info in store.get_file_info(FileSelector("_delta_log"))]
    later = {name: int(found[1]) for name in names if (found := OF_A_VERSION.fullmatch(name))}
    committed = max([latest, *(version for name, version in later.items() if name.endswith(".json"))])
    rows = [{"table": role, "file": name, "of version": at} for name, at in sorted(later.items()) if at > committed]
    expected = f"version {latest} is the last one of the {role}"
    yield from differing("log", expected, pa.Table.from_pylist(rows), "files of later versions")


def unnamed(table: DeltaTable, location: str, log: Log, begin: str, microbatch: int | None = None) -> list[str]:
    """Return the data files whose names begin with `begin` and that no entry names: the log may have lost the entry.

    With `microbatch` these are the files of later microbatches, else the files with rows that are newer than the last
    entry: Spark leaves empty ones behind.
    """
    store = table_files(location, table)
    found = {info.path: info for info in store.get_file_info(FileSelector(begin, recursive=True, allow_not_found=True))}
    live = pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all()["path"].to_pylist()
    named = log.rows.keys() | {unquote(path) for path in live}
    last = store.get_file_info(f"_delta_log/{table.version():020}.json").mtime_ns or 0
    others = [path for path in found if path.endswith(".parquet") and not path.startswith("_") and path not in named]
    if microbatch is None:
        return sorted(path for path in others if (found[path].mtime_ns or 0) >= last and not _is_empty(store, path))
    return sorted(path for path in others if _reaches(store, path, microbatch))


def _is_empty(store: FileSystem, path: str) -> bool:
    """Tell whether a file is whole and has no rows."""
    try:
        with store.open_input_file(path) as opened:
            return bool(pq.read_metadata(opened).num_rows == 0)
    except FAULTS:
        return False


def _reaches(store: FileSystem, path: str, microbatch: int) -> bool:
    """Tell whether a file of the history has a later microbatch; an incomplete file was never committed."""
    try:
        with store.open_input_file(path) as opened:
            return bool((pc.max(pq.read_table(opened, columns=["microbatch"])["microbatch"]).as_py() or 0) > microbatch)
    except (*FAULTS, KeyError):
        return False


def _why_wrong(store: FileSystem, path: str, entry: Mapping[str, Any], rows: int | None) -> str | None:
    """Return what is wrong with a file, or None; `rows` is the number of rows that its commit recorded."""
    row_count = 0
    try:
        with store.open_input_file(path) as opened:
            file = parquet_file(opened, opened.size())
            if opened.size() != entry["size_bytes"]:
                return f"it has {opened.size()} bytes, the log says {entry['size_bytes']}"
            for part in row_groups(file):
                part.validate(full=True)
                row_count += part.num_rows
                for name in part.column_names:
                    if _is_outside(part[name], entry.get(f"min.{name}"), entry.get(f"max.{name}")):
                        return f"{name} has values outside the range that the log says"
    except FileNotFoundError:
        return None  # reading the rows reports it
    except FAULTS as error:
        raise OSError(f"{path}: {first_line(error)}") from error
    other = next((count for count in (entry["num_records"], rows) if count not in (None, row_count)), None)
    return None if other is None else f"it has {row_count} rows, the log says {other}"


def _is_outside(column: pa.ChunkedArray, least: Any, greatest: Any) -> bool:
    """Tell whether a column has values outside its statistics: long texts are truncated, times in microseconds."""
    type_ = column.type
    if least is None or greatest is None or column.null_count == len(column):
        return False
    if pa.types.is_integer(type_) or pa.types.is_timestamp(type_):
        if pa.types.is_timestamp(type_):
            column, greatest = column.cast(pa.timestamp("us", type_.tz)).cast(pa.int64()), greatest + MILLISECOND - 1
    elif not pa.types.is_string(type_):
        return False
    found = pc.min_max(column)
    low, high = found["min"].as_py(), found["max"].as_py()
    return bool(low < least or (high[: len(greatest)] if isinstance(high, str) else high) > greatest)

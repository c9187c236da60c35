"""Check the files of a table against its log: read every column of every live file once, and compare with its entry.

The final rows of two ledger versions are compared too: they are in the same files, or equal in different files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileSystem

from windrow.columnar.arrow import times_to_numbers, to_plain_types
from windrow.delta.database import database
from windrow.delta.row_changes import parquet_file, row_groups
from windrow.delta.table import READ_ERRORS, table_files, translate_read_errors
from windrow.errors import first_line
from windrow.model import tables
from windrow.reading.tables import Ledger
from windrow.verify.log import Log
from windrow.verify.report import Difference, Found, at_version, difference_in_rows

OF_A_VERSION = re.compile(r"_delta_log/\.?(\d{20})\..*")
STATES = (tables.OPEN, tables.PROGRESS, "partial", *tables.FINAL)
MILLISECOND = 1_000  # Spark truncates the times in a file's statistics to milliseconds
WITH_RANGE = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_string)
TOGETHER = 16_000_000  # bytes of rows that are compared together, so that memory stays flat

# Rows that occur in two sets of files with different frequency.
CHANGED = """
SELECT DISTINCT state, id FROM (
    SELECT state, id, hash(r) AS content, 1 AS sign FROM older AS r
    UNION ALL SELECT state, id, hash(r), -1 FROM newer AS r
) GROUP BY state, id, content HAVING sum(sign) <> 0 ORDER BY state, id
"""


def check_table(
    log: Log,
    table: DeltaTable,
    location: str,
    role: str,
    handles: Sequence[DeltaTable] = (),
    start: str = "",
    microbatch: int | None = None,
    since: int = -1,
) -> list[Found]:
    """Check the end of a table's log, and its live files at the versions of `handles` (default: the latest).

    `start` and `microbatch` say which files may belong to lost commits (`orphan_files`). Files that existed at version
    `since` are not read; only their sizes are checked.
    """
    result, read = at_version(table.version(), check_end(table, location, role)), set[str]()
    for handle in handles or [table]:
        if since >= 0:
            result += at_version(handle.version(), _check_sizes(handle, location, role, log, since, read))
        result += at_version(handle.version(), check_files(handle, location, role, log, read))
    lost = orphan_files(table, location, log, start, microbatch)
    result += [
        f"whether the last commits of the {role} are there: no entry of its log names {first}, nor {len(lost) - 1} "
        "other files; either they were not committed, or the entry is gone"
        for first in lost[:1]
    ]
    return result


def check_states(table: DeltaTable) -> Iterator[Difference]:
    """Check that the ledger of a batcher has only rows of its own states."""
    files = to_plain_types(pa.table(table.get_add_actions(flatten=True))).select(["partition.state", "path"])
    foreign = files.filter(pc.invert(pc.is_in(files["partition.state"], pa.array(STATES))))
    rows = foreign.rename_columns(["state", "file"])
    yield from difference_in_rows("states", f"only rows of {', '.join(STATES)}", rows, "files of other states")


def check_files(table: DeltaTable, location: str, role: str, log: Log, read: set[str]) -> Iterator[Difference]:
    """Check the live files of a table at the version of its handle, except those already in `read`.

    Raises TableUnreadableError for the first file that exists and cannot be read in full.
    """
    new = _entries(table, location, role, without=read)
    read.update(new)
    with translate_read_errors(location, role):
        why = _why_wrong(table_files(location, table), new, log)
    wrong = [{"table": role, "file": path, "why": why[path]} for path in new if path in why]
    expected = f"each file of the {role} can be read in full and holds what the log says of it"
    yield from difference_in_rows("files", expected, pa.Table.from_pylist(wrong), "files")


def _check_sizes(
    table: DeltaTable, location: str, role: str, log: Log, since: int, read: set[str]
) -> Iterator[Difference]:
    """Check the sizes of the files that existed at version `since`, and add these files to `read`."""
    # A file without an entry in a trimmed log is older than those with one.
    entries = {
        path: entry["size_bytes"]
        for path, entry in _entries(table, location, role, ["path", "size_bytes"]).items()
        if log.added_in.get(path, -1) <= since
    }
    read.update(entries)
    with translate_read_errors(location, role):
        listed = table_files(location, table).get_file_info(FileSelector("", recursive=True))
    sizes = {info.path: info.size for info in listed}
    wrong = [
        {"table": role, "file": path, "why": f"it has {sizes.get(path, 'no')} bytes, the log says {size}"}
        for path, size in entries.items()
        # guard: old-file-sizes
        if sizes.get(path) != size
    ]
    yield from difference_in_rows("files", f"each file of the {role} as it was", pa.Table.from_pylist(wrong), "files")


def _entries(
    table: DeltaTable, location: str, role: str, names: Sequence[str] | None = None, without: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the log's entry for each live file, by path, without files that a clone refers to by address."""
    with translate_read_errors(location, role):
        listed = to_plain_types(pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all())
        paths = [unquote(path) for path in listed["path"].to_pylist()]
        is_chosen = [path not in without and ":" not in path.split("/")[0] for path in paths]
        entries = times_to_numbers(
            listed.select(names or listed.column_names).filter(pa.array(is_chosen, pa.bool_()))
        ).to_pylist()
    return {unquote(entry["path"]): entry for entry in entries}


def check_end(table: DeltaTable, location: str, role: str) -> Iterator[Difference]:
    """Check that no file of a log has a later version than its last entry. The table must be at its latest version."""
    latest, store = table.version(), table_files(location, table)
    names = [info.path for info in store.get_file_info(FileSelector("_delta_log"))]
    later = {name: int(match[1]) for name in names if (match := OF_A_VERSION.fullmatch(name))}
    committed = max([latest, *(version for name, version in later.items() if name.endswith(".json"))])
    rows = [{"table": role, "file": name, "of version": at} for name, at in sorted(later.items()) if at > committed]
    expected = f"version {latest} is the last one of the {role}"
    yield from difference_in_rows("log", expected, pa.Table.from_pylist(rows), "files of later versions")


def orphan_files(table: DeltaTable, location: str, log: Log, start: str, microbatch: int | None = None) -> list[str]:
    """Return the data files whose paths begin with `start` and that no log entry names: the entry may be lost.

    With `microbatch`, these are the files of later microbatches, else the non-empty files newer than the last entry;
    Spark leaves empty ones behind.
    """
    store = table_files(location, table)
    files = {info.path: info for info in store.get_file_info(FileSelector(start, recursive=True, allow_not_found=True))}
    live = pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all()["path"].to_pylist()
    named = log.rows.keys() | {unquote(path) for path in live}
    last = store.get_file_info(f"_delta_log/{table.version():020}.json").mtime_ns or 0
    others = [path for path in files if path.endswith(".parquet") and not path.startswith("_") and path not in named]
    if microbatch is None:
        others = [path for path in others if (files[path].mtime_ns or 0) >= last]
    return sorted(path for path in others if _may_be_lost(store, path, microbatch))


def last_revision(ledger: Ledger) -> int:
    """Return the revision of the last commit in a ledger version: later rows have later revisions."""
    return int(ledger.rows("progress", "max(revision) AS revision")["revision"][0].as_py())


def check_finals(before: Ledger, after: Ledger) -> Iterator[Difference]:
    """Check that closed batches, rejections and history of a version are the same in a later one.

    Rows in the same file are the same. Rows in different files are compared by their hashes; those added since then
    are left out. Raises TableUnreadableError for a file that is gone.
    """
    revision = last_revision(before)
    old, new = (final_files(snapshot.table) for snapshot in (before, after))
    gone, others = old.keys() - new.keys(), [path for path in new if path not in old and (new[path] or 0) <= revision]
    if not gone and not others:
        return
    not_newer = ~(ds.field("revision") > revision) | ds.field("revision").is_null()
    names = [field.name for field in before.table.schema().fields if field.name != "folded"]
    with translate_read_errors(before.location, "ledger"), database() as connection:
        connection.register("older", _rows(before, gone, names, None))
        connection.register("newer", _rows(after, others, names, not_newer))
        changed = connection.sql(CHANGED).to_arrow_table()
    for state in tables.FINAL:
        rows = changed.filter(pc.equal(changed["state"], state)).select(["id"])
        expected = f"final rows as in version {before.version}"
        yield from difference_in_rows(f"final rows ({state})", expected, rows, "rows that changed")


def final_files(table: DeltaTable) -> dict[str, int | None]:
    """Return the least revision in each live file of final rows, by path; None if the log does not say."""
    listed = to_plain_types(pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all())
    names = [name for name in ("path", "partition.state", "min.revision") if name in listed.column_names]
    entries = times_to_numbers(listed.select(names)).to_pylist()
    return {
        unquote(entry["path"]): entry.get("min.revision")
        for entry in entries
        if entry["partition.state"] in tables.FINAL
    }


def _rows(ledger: Ledger, paths: Iterable[str], names: list[str], where: ds.Expression | None) -> pa.RecordBatchReader:
    """Return a reader over the rows in some files of a ledger."""
    chosen, store = set(paths), table_files(ledger.location, ledger.table)
    table = ledger.table.to_pyarrow_dataset(filesystem=store)
    files = [get_fragment for get_fragment in table.get_fragments() if unquote(get_fragment.path) in chosen]
    return (
        ds.FileSystemDataset(files, table.schema, table.format, store).scanner(columns=names, filter=where).to_reader()
    )


def _may_be_lost(store: FileSystem, path: str, microbatch: int | None) -> bool:
    """Tell whether a file has a later microbatch (no incomplete one was committed) or, with None, is not empty."""
    try:
        with store.open_input_file(path) as opened:
            if microbatch is None:
                return bool(pq.read_metadata(opened).num_rows)
            latest = pc.max(pq.read_table(opened, columns=["microbatch"])["microbatch"]).as_py()
            return bool((latest or 0) > microbatch)
    except (*READ_ERRORS, KeyError):
        return microbatch is None


def _why_wrong(store: FileSystem, entries: Mapping[str, Mapping[str, Any]], log: Log) -> dict[str, str]:
    """Return, by path, what is wrong with each file that contradicts its entry.

    Many small files are compared with the log at a time.
    """
    why, counts, unchecked = dict[str, str](), dict[str, int](), list[tuple[str, pa.Table]]()
    size = 0
    for path, entry in entries.items():
        try:
            with store.open_input_file(path) as opened:
                if opened.size() != entry["size_bytes"]:
                    why[path] = f"it has {opened.size()} bytes, the log says {entry['size_bytes']}"
                    continue
                counts[path] = 0
                for rows in row_groups(parquet_file(opened, opened.size())):
                    rows.validate(full=True)
                    counts[path] += rows.num_rows
                    unchecked.append((path, rows))
                    size += rows.nbytes
                    if size > TOGETHER:
                        why |= _outside(unchecked, entries)
                        unchecked, size = [], 0
        except FileNotFoundError:
            continue  # reading the rows reports it
        except READ_ERRORS as error:
            raise OSError(f"{path}: {first_line(error)}") from error
    why |= _outside(unchecked, entries)
    for path, count in counts.items():
        text = (entries[path]["num_records"], log.rows.get(path))
        other = next((number for number in text if number not in (None, count)), None)
        if other is not None and path not in why:
            why[path] = f"it has {count} rows, the log says {other}"
    return why


def _outside(files: Sequence[tuple[str, pa.Table]], entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return, by path, the files with values outside the range that the log gives for one of their columns."""
    outside: dict[str, str] = {}
    by_schema: dict[pa.Schema, list[tuple[str, pa.Table]]] = defaultdict(list)
    for path, rows in files:
        by_schema[rows.schema.remove_metadata()].append((path, rows))
    for schema, alike in by_schema.items():
        fields = [field for field in schema if any(of_type(field.type) for of_type in WITH_RANGE)]
        rows = pa.concat_tables([rows for _, rows in alike])
        columns = [_microseconds(rows[field.name]) for field in fields]
        number = pa.array(np.repeat(np.arange(len(alike)), [rows.num_rows for _, rows in alike]))
        # Columns are numbered, because a column may have any name.
        ranges = pa.table([number, *columns], [str(place) for place in range(-1, len(fields))]).group_by("-1")
        for row in ranges.aggregate([(str(place), "min_max") for place in range(len(fields))]).to_pylist():
            path = alike[row["-1"]][0]
            extremes = ((field, row[f"{at}_min_max"]) for at, field in enumerate(fields))
            name = next((field.name for field, both in extremes if _is_outside(field, both, entries[path])), None)
            if name is not None:
                outside[path] = f"{name} has values outside the range that the log says"
    return outside


def _microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as numbers; other columns as they are."""
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def _is_outside(field: pa.Field, extremes: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Tell whether a column has values outside its statistics, which truncate long texts; times are microseconds."""
    least, greatest = entry.get(f"min.{field.name}"), entry.get(f"max.{field.name}")
    low, high = extremes["min"], extremes["max"]
    if least is None or greatest is None or low is None:
        return False
    if pa.types.is_timestamp(field.type):
        greatest += MILLISECOND - 1
    return bool(low < least or (high[: len(greatest)] if isinstance(high, str) else high) > greatest)

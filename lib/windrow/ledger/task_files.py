"""Spark's tasks write their rows of the ledger themselves, as the embedded engine does.

Only the names of the files that a task has written and the counts of its rows come to the driver. Spark uses the
result of one attempt of each task. No commit adds what another attempt has written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.columnar.arrow import to_plain_types
from windrow.delta.locations import is_catalog_name, local_path
from windrow.engine.spark.errors import translate_error
from windrow.errors import EngineUnavailableError
from windrow.ledger.file_writer import WrittenFile
from windrow.ledger.result import GROUPS
from windrow.ledger.row_writer import RowWriter, WrittenRows
from windrow.rows.frame import all_rows_at_once, keep_types
from windrow.rows.rows import Function

if TYPE_CHECKING:
    from windrow.engine.spark.engine import SparkEngine

FILE = pa.struct(
    [
        ("path", pa.string()), ("state", pa.string()), ("folded", pa.bool_()), ("size", pa.int64()),
        ("row_count", pa.int64()), ("statistics", pa.string()),
    ]
)  # fmt: skip
RESULT = pa.schema([("files", pa.list_(FILE)), ("groups", pa.list_(pa.struct(list(GROUPS))))])
INSTEAD = 'Or use commit = "merge".'


def write_in_tasks(rows: DataFrame, writer: RowWriter, function: Function = keep_types) -> WrittenRows:
    """Have each task apply a function to all of its rows, and write the resulting rows that changed.

    Raises the errors of Spark.
    """
    writing = all_rows_at_once(partial(_write, function, writer))
    try:
        written = to_plain_types(rows.mapInArrow(writing, from_arrow_schema(RESULT)).toArrow())
    except PySparkException as error:
        raise translate_error(error) from error
    files = [WrittenFile(**file) for task in written["files"].to_pylist() for file in task]
    return WrittenRows(files, _rows_in(written["groups"]))


def _write(function: Function, writer: RowWriter, rows: pa.Table) -> pa.Table:
    """Run in a task: return one row with the files and the counts."""
    written = writer.write(function(rows))
    result = {"files": [asdict(file) for file in written.files], "groups": written.groups.to_pylist()}
    return pa.Table.from_pylist([result], RESULT)


def _rows_in(lists: pa.ChunkedArray) -> pa.Table:
    """Return the rows in lists of rows."""
    structs = pa.chunked_array([chunk.flatten() for chunk in lists.chunks], lists.type.value_type)
    return pa.Table.from_struct_array(structs).cast(GROUPS)


def place_of_tasks(engine: SparkEngine, place: str) -> str:
    """Return the location of a ledger, as delta-rs and all tasks of Spark reach it. Raises EngineUnavailableError."""
    if engine.remote or is_catalog_name(place):
        what = "Spark in this process, not Spark Connect" if engine.remote else f"a ledger with a path, not {place}"
        raise EngineUnavailableError(f'commit = "files" needs {what}', INSTEAD)
    path = engine.local_path(place)
    if path is None and local_path(place) is not None:
        raise EngineUnavailableError(
            f'{place} is not on the local disk for Spark, so commit = "files" cannot write there',
            f"Give the ledger as a full address (such as s3://, abfss:// or hdfs://). {INSTEAD}",
        )
    if path is not None:
        _require_shared(engine.session, path)
    return place if path is None else str(path)


def _require_shared(session: SparkSession, path: Path) -> None:
    """Raise EngineUnavailableError if a task of Spark cannot see what this process has written beside a local path."""
    context = session.sparkContext
    if (context.master or "").partition("[")[0] == "local":
        return
    marker = path.absolute().parent / f".{path.name}.{uuid4()}"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    try:
        tasks = session.range(0, context.defaultParallelism, 1, context.defaultParallelism)
        seen = tasks.mapInArrow(partial(_sees, str(marker)), "seen BOOLEAN").where("NOT seen").count() == 0
    finally:
        marker.unlink()
    # guard: tasks-reach-the-ledger
    if not seen:
        raise EngineUnavailableError(
            f"tasks of {context.master} do not see {path}, which is only on the driver's disk",
            f"Put the ledger on an object store, HDFS or a disk that all machines share. {INSTEAD}",
        )


def _sees(marker: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell in a task whether a file is there."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"seen": [Path(marker).exists()]})

"""Spark's tasks write their rows of the ledger themselves, as the embedded engine does.

Only the names of the files that a task has written come to the driver, and the counts of its rows. Spark takes the
result of one attempt of each task. What another attempt has written, no commit adds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.columnar.arrow import plain
from windrow.delta.locations import is_catalog_name, local_path
from windrow.engine.spark.errors import translated
from windrow.errors import EngineUnavailable
from windrow.ledger.file_writer import FileWriter, WrittenFile
from windrow.ledger.result import GROUPS, grouped
from windrow.ledger.versions import written
from windrow.model.tables import CHANGED
from windrow.rows.frame import in_one, unchanged
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
ON_THIS_MACHINE = ("local", "local-cluster")  # masters of Spark


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The files that tasks have written, and the counts of their rows (`result.GROUPS`), those of each task apart."""

    files: list[WrittenFile]
    groups: pa.Table


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """Lets tasks write files of a ledger with the columns `schema`, as rows of a `revision`."""

    writer: FileWriter
    schema: pa.Schema
    revision: int

    @property
    def no_rows(self) -> pa.Table:
        """Return the rows of a result that are in no file: none."""
        return self.schema.append(pa.field("known", pa.bool_())).empty_table()

    def write(self, rows: DataFrame, function: Function = unchanged) -> TaskFiles:
        """Write the changed ones of the rows that a function makes of all rows of each task. Raises Spark's errors."""
        writing = in_one(partial(_write, function, self))
        try:
            found = plain(rows.mapInArrow(writing, from_arrow_schema(RESULT)).toArrow())
        except PySparkException as error:
            raise translated(error) from error
        files = [WrittenFile(**file) for task in found["files"].to_pylist() for file in task]
        return TaskFiles(files, _rows_in(found["groups"]))


def _write(function: Function, writer: TaskWriter, rows: pa.Table) -> pa.Table:
    """Run in a task: write the changed rows, and return one row with the files and the counts."""
    rows = function(rows)
    changed = rows.filter(rows[CHANGED]).select([*writer.schema.names, "known"])
    changed = changed.cast(writer.schema.append(pa.field("known", pa.bool_())))
    files = writer.writer.write_all(written(changed, writer.revision))
    result = {"files": [asdict(file) for file in files], "groups": grouped(rows).to_pylist()}
    return pa.Table.from_pylist([result], RESULT)


def _rows_in(lists: pa.ChunkedArray) -> pa.Table:
    """Return the rows in lists of them."""
    structs = pa.chunked_array([chunk.flatten() for chunk in lists.chunks], lists.type.value_type)
    return pa.Table.from_struct_array(structs).cast(GROUPS)


def place_of_tasks(engine: SparkEngine, place: str) -> str:
    """Return the location of a ledger, as delta-rs and all tasks of Spark reach it. Raises EngineUnavailable."""
    if engine.remote or is_catalog_name(place):
        what = "Spark in this process, not Spark Connect" if engine.remote else f"a ledger with a path, not {place}"
        raise EngineUnavailable(f'commit = "files" needs {what}', 'Use commit = "merge".')
    path, local = engine.local_path(place), local_path(place)
    if path is None and local is not None:
        raise EngineUnavailable(
            f'{place} is not on the local disk for Spark, so commit = "files" cannot write there',
            'Give the ledger as a full address (such as s3://, abfss:// or hdfs://), or use commit = "merge".',
        )
    master = engine.session.sparkContext.master or ""
    # guard: tasks-reach-the-ledger
    if path is not None and master.partition("[")[0] not in ON_THIS_MACHINE:
        raise EngineUnavailable(
            f"the ledger is on the local disk ({path}), where tasks of {master} on other machines cannot write",
            'Put the ledger on an object store or HDFS, or use commit = "merge".',
        )
    return place if path is None else str(path)

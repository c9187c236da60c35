"""Stream a depot without a change data feed: Spark reads its files, and the log says which version added which file.

The stream skips a version that changed or removed rows; the log says which these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow.delta.logfiles import entry_path
from windrow.model.commits import CHANGE, VERSION

FILE = "_windrow_file"


def with_files(stream: DataFrame) -> DataFrame:
    """Return a stream of a table's rows with the name of the file of each."""
    return stream.withColumn(FILE, F.element_at(F.split(F.input_file_name(), "/"), -1))


def with_versions(frame: DataFrame, files: Mapping[str, int]) -> DataFrame:
    """Return rows with file names as a change feed would give them; `files` has the version that added each file."""
    known = frame.sparkSession.createDataFrame(
        [(unquote(name), at) for name, at in files.items()], f"{FILE} STRING, {VERSION} LONG"
    )
    rows = frame.withColumn(FILE, F.url_decode(FILE)).join(F.broadcast(known), FILE, "left")
    unknown = F.raise_error(F.concat(F.lit("no version of the depot added the file "), FILE)).cast("long")
    return rows.withColumn(VERSION, F.coalesce(VERSION, unknown)).withColumn(CHANGE, F.lit("insert")).drop(FILE)


def files_in_log(session: SparkSession, location: str, first: int, last: int) -> tuple[dict[str, int], set[int]]:
    """Return what the log of a table at a path says of versions, as `Log.files_added` does."""
    entries = [f"{location}/{entry_path(version)}" for version in range(first, last + 1)]
    action = "STRUCT<path: STRING, dataChange: BOOLEAN>"
    lines = session.read.schema(f"add {action}, remove {action}").json(entries)
    lines = lines.where("add.dataChange OR (remove IS NOT NULL AND coalesce(remove.dataChange, true))")
    names, removing = {}, set()
    for path, entry in lines.select("add.path", F.input_file_name()).collect():
        version = int(entry.rsplit("/", 1)[-1].split(".")[0])
        if path is None:
            removing.add(version)
        else:
            names[path.rsplit("/", 1)[-1]] = version
    return names, removing

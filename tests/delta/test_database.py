"""DuckDB goes to disk beyond its memory; a full disk is an error that says what to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pytest

from windrow.delta.database import database, joins_as_written

SORTED = """
import resource, sys
from windrow.delta import database
from windrow.errors import TableUnwritableError
database.MIN_DATABASE_BYTES = 60_000_000
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    with database.database(1) as connection:
        connection.execute("CREATE TABLE numbers AS SELECT md5(range::TEXT) AS text FROM range(2_000_000)")
        print(connection.sql("SELECT count(*) FROM (SELECT text FROM numbers ORDER BY text)").fetchall())
except TableUnwritableError as error:
    print(error.message, error.hint)
"""


JOINED = "SELECT count(*) FROM stream AS s JOIN few AS f ON f.number = s.number"


@pytest.mark.parametrize(
    ("limit", "texts"),
    [
        (1_000_000_000, ["[(2000000,)]"]),
        (1_000, ["no room for temporary rows", "File too large", "Set TMPDIR", "raise max_memory_bytes"]),
    ],
    ids=["room", "full"],
)
def test_full_disk(limit: int, texts: list[str]) -> None:
    """More rows than fit into memory are sorted on disk, and without room there they are an error with a hint."""
    out = subprocess.check_output([sys.executable, "-c", SORTED, str(limit)], text=True)
    assert all(text in out for text in texts), out


def test_joins_as_written() -> None:
    """Of a stream of rows and a table, what is looked up is the table, whatever DuckDB thinks of their sizes."""
    number = pa.schema([("number", pa.int64())])
    with database() as connection:
        connection.register("few", pa.table({"number": range(10)}))
        connection.register("stream", pa.RecordBatchReader.from_batches(number, iter(())))
        with joins_as_written(connection):
            [(_, plan)] = connection.sql(f"EXPLAIN (FORMAT json) {JOINED}").fetchall()
    node = json.loads(plan)[0]
    while node["children"]:
        node = node["children"][0]
    assert node["extra_info"]["Estimated Cardinality"] == "1", plan  # the stream, which is read row by row

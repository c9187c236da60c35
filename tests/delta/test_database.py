"""DuckDB goes to disk beyond its memory; a full disk is an error that says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

SORTED = """
import resource, sys
from windrow.delta import database
from windrow.errors import TableUnwritable
database.LEAST_DATABASE_BYTES = 60_000_000
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    with database.database(1) as connection:
        connection.execute("CREATE TABLE numbers AS SELECT md5(range::TEXT) AS text FROM range(2_000_000)")
        print(connection.sql("SELECT count(*) FROM (SELECT text FROM numbers ORDER BY text)").fetchall())
except TableUnwritable as error:
    print(error.message, error.hint)
"""


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (1_000_000_000, ["[(2000000,)]"]),
        (1_000, ["no room for temporary rows", "File too large", "Set TMPDIR", "raise max_memory_bytes"]),
    ],
    ids=["room", "full"],
)
def test_full_disk(limit: int, said: list[str]) -> None:
    """More rows than fit into memory are sorted on disk, and without room there they are an error with a hint."""
    out = subprocess.check_output([sys.executable, "-c", SORTED, str(limit)], text=True)
    assert all(one in out for one in said), out

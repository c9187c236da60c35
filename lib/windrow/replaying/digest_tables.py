"""The digests of the rows of two tables in DuckDB, which goes to disk beyond its share of the memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.columnar.arrow import one_batch, to_plain_types
from windrow.model import canonical
from windrow.reading.digests import LedgerSelection
from windrow.reading.tables import Ledger

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SIDES = RECORDED, REPLAYED = "recorded", "replayed"
CREATE = "CREATE TABLE {} (id TEXT, state TEXT, reason TEXT, microbatch BIGINT, digest BLOB)"
INSERT = "INSERT INTO {} BY NAME SELECT * REPLACE (unhex(digest) AS digest) FROM piece"
ORDERED = "SELECT id, lower(hex(digest)) AS digest FROM {} ORDER BY id, digest"
BATCHES = "SELECT count(*) FILTER (state <> 'rejected') FROM {}"
REJECTED = "SELECT reason, count(*) FROM {} WHERE state = 'rejected' GROUP BY reason ORDER BY reason"
# The rows that the other ledger lacks, or has with another digest.
DIFFERING = """
CREATE TABLE differing AS
SELECT 'recorded' AS side, id, microbatch FROM recorded ANTI JOIN replayed USING (id, digest)
UNION ALL SELECT 'replayed', id, microbatch FROM replayed ANTI JOIN recorded USING (id, digest)
"""
SAME = """
SELECT (SELECT count(*) FROM recorded) - count(*), min(microbatch) FROM differing WHERE side = 'recorded'
"""
ROWS_AT_ONCE = 100_000
BLOCK = 8  # pieces of a ledger whose digests are computed together
MARKS = 1 << 24  # a byte each; with as many differing rows, most equal rows are mistaken for them
MARK = f"hash(id) % {MARKS}"


class DigestTables:
    """The digests of a `recorded` ledger and of a `replayed` one, each in a table with the columns of `CREATE`."""

    def __init__(self, connection: DuckDBPyConnection) -> None:
        self._connection = connection
        for side in SIDES:
            connection.execute(CREATE.format(side))

    def load(self, side: str, ledger: Ledger, part: LedgerSelection) -> None:
        """Add the digests of a part of a ledger, computed on as many threads as Arrow uses."""
        batches = (partial(_digests, rows, canonical.batches) for rows in part.batches(ledger))
        rejections = (partial(_digests, rows, canonical.rejections) for rows in part.rejections(ledger))
        with ThreadPoolExecutor(pa.cpu_count(), "windrow-digests") as pool:
            calls = chain(batches, rejections)
            while block := list(islice(calls, BLOCK)):
                self.add(side, pa.concat_tables(pool.map(lambda call: call(), block)))

    def add(self, side: str, rows: pa.Table) -> None:
        """Add digests (hexadecimal); a column of `CREATE` that they lack is NULL."""
        self._connection.register("piece", rows)
        self._connection.execute(INSERT.format(side))

    def total(self, side: str) -> str:
        """Return the digest of all rows of a side."""
        return canonical.digest(self._connection.sql(ORDERED.format(side)).arrow(ROWS_AT_ONCE))

    def counts(self, side: str) -> tuple[int, dict[str, int]]:
        """Return the number of batches of a side, and of rejections by reason."""
        [(batches,)] = self._connection.sql(BATCHES.format(side)).fetchall()
        return batches, dict(self._connection.sql(REJECTED.format(side)).fetchall())

    def find_differing(self) -> tuple[int, int | None]:
        """Find the rows that differ; return how many others were recorded, and the first microbatch that differs."""
        self._connection.execute(DIFFERING)
        [(same, first_microbatch)] = self._connection.sql(SAME).fetchall()
        return same, first_microbatch

    def differing_marks(self) -> npt.NDArray[np.bool_]:
        """Return for each mark whether a differing row has it; after `find_differing`."""
        marked = np.zeros(MARKS, np.bool_)
        marked[self._marks("SELECT DISTINCT {} AS mark FROM differing")] = True
        return marked

    def marks(self, rows: pa.Table) -> npt.NDArray[np.uint64]:
        """Return the mark of the id of each row, which other ids may share."""
        self._connection.register("piece", rows.select(["id"]))
        return self._marks("SELECT {} AS mark FROM piece")

    def _marks(self, query: str) -> npt.NDArray[np.uint64]:
        return self._connection.sql(query.format(MARK)).fetchnumpy()["mark"]


def _digests(rows: pa.Table, encode: Callable[[pa.RecordBatch], pa.Array]) -> pa.Table:
    """Return the digests of rows, encoded by `encode`, in the columns of `CREATE`."""
    reason = rows["reason"] if "reason" in rows.column_names else pa.nulls(rows.num_rows, pa.string())
    columns = [rows["id"], rows["state"], reason, rows["microbatch"], canonical.digests(encode(one_batch(rows)))]
    return to_plain_types(pa.table(columns, ["id", "state", "reason", "microbatch", "digest"]))

"""The oracle: counts with DuckDB what became of each message, over the Delta tables that a writer left.

The questions are in `oracle.sql`. Nothing here knows how any writer works: a system says with one query which rows of
its output are closed batches, and with another one which are rejected messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tests.conformance.depot import TAIL_KEY
from tests.conformance.system import Mapping, System

MAX_DELAY_US = 5_000_000
COUNTS = ("lost", "dropped", "twice", "altered", "changed", "different", "unfinished", "waiting", "stopped")
SENT = pa.schema(
    [
        ("sequence", pa.int64()),
        ("source", pa.string()),
        ("key", pa.string()),
        ("type", pa.string()),
        ("event_time", pa.int64()),
        ("payload", pa.string()),
        ("received_at", pa.int64()),
    ]
)
PUBLISHED = pa.schema([("version", pa.int64()), ("batch", pa.string()), *list(SENT)[:6]])
REJECTED = pa.schema([("sequence", pa.int64())])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a writer has published: in each version the messages of closed batches, and the rejected messages."""

    published: pa.Table
    rejected: pa.Table
    versions: tuple[int, ...] = (0,)

    @property
    def accounted(self) -> pa.Table:
        """The messages that are in a closed batch or rejected, one column."""
        last = self.published.filter(pc.field("version") == max(self.versions, default=0))
        return pa.concat_tables([last.select(["sequence"]), self.rejected])


def read_outcome(system: System, output: Path) -> Outcome:
    """Read every version of the batches of a system, and its rejected messages."""
    versions = table_versions(output / system.batches.table)
    batches = [_closed_at(system.batches, output, version) for version in versions]
    published = pa.concat_tables([PUBLISHED.empty_table(), *batches])
    return Outcome(published, _rejected(system.rejected, output), tuple(versions))


def read_sent(depot: Path) -> pa.Table:
    """Read the depot; times become microseconds."""
    return as_sent(DeltaTable(str(depot)).to_pyarrow_table())


def as_sent(table: pa.Table) -> pa.Table:
    """Return messages as the oracle takes them, without those that only end the last batches."""
    return table.filter(pc.field("key") != TAIL_KEY).select(SENT.names).cast(SENT)


def count(
    sent: pa.Table, outcome: Outcome, expected: Outcome | None = None, quiet: pa.Table | None = None
) -> dict[str, int | None]:
    """Return how many of each kind of defect there are, None for what this trial cannot tell."""
    with duckdb.connect() as books:
        _fill(books, sent, outcome, expected or outcome, sent if quiet is None else quiet)
        counts: dict[str, int | None] = {
            name: books.sql(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in COUNTS
        }
    return counts | ({} if expected else {"different": None})


def _fill(
    books: duckdb.DuckDBPyConnection, sent: pa.Table, outcome: Outcome, expected: Outcome, quiet: pa.Table
) -> None:
    last = pc.field("version") == max(expected.versions, default=0)
    tables = {
        "sent": sent,
        "published": outcome.published,
        "rejected": outcome.rejected,
        "versions": pa.table({"version": pa.array(outcome.versions, pa.int64())}),
        "quiet": quiet,
        "expected": expected.published.filter(last),
        "expected_rejected": expected.rejected,
    }
    for name, table in tables.items():
        books.register(f"given_{name}", table)
        books.execute(f"CREATE TABLE {name} AS SELECT * FROM given_{name}")
    books.execute(f"SET VARIABLE max_delay = {MAX_DELAY_US}")
    books.execute((Path(__file__).parent / "oracle.sql").read_text(encoding="utf-8"))


def table_versions(table: Path) -> list[int]:
    if not DeltaTable.is_deltatable(str(table)):
        return []
    return sorted(int(file.stem) for file in (table / "_delta_log").glob("*.json") if file.stem.isdigit())


def _closed_at(batches: Mapping, output: Path, version: int) -> pa.Table:
    query = f"""
        SELECT {version} AS version, CAST(batch AS VARCHAR) AS batch, CAST(sequence AS BIGINT) AS sequence, source, key,
               type, epoch_us(event_time) AS event_time, payload
        FROM ({batches.query}) WHERE key IS DISTINCT FROM '{TAIL_KEY}'"""
    return _asked(query, DeltaTable(str(output / batches.table), version=version)).cast(PUBLISHED)


def _rejected(rejected: Mapping | None, output: Path) -> pa.Table:
    if rejected is None or not DeltaTable.is_deltatable(str(output / rejected.table)):
        return REJECTED.empty_table()
    query = f"SELECT CAST(sequence AS BIGINT) AS sequence FROM ({rejected.query}) WHERE sequence >= 0"
    return _asked(query, DeltaTable(str(output / rejected.table))).cast(REJECTED)


def _asked(query: str, table: DeltaTable) -> pa.Table:
    with duckdb.connect() as database:
        database.register("output", table.to_pyarrow_table())
        return database.sql(query).to_arrow_table()

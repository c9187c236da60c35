"""Check which features of a Delta table delta-rs cannot read or write, by trying, since a list would become outdated.

The trial uses an empty table in a temporary directory with the protocol, schema and properties of the table in
question. That table itself is not touched.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from windrow.errors import first_line
from windrow.model.commits import FEED
from windrow.operate.doctor.finding import Finding, error, ok, warning

FAILURES = (DeltaError, pa.ArrowException, OSError, ValueError)


def check_features(role: str, table: DeltaTable, engine: str) -> Iterator[Finding]:
    """Try to read and write a table like this one (`role`: depot or ledger) with delta-rs, and report what fails.

    Every command without a JVM needs reading; the embedded engine needs writing, and so does `ingest` for a depot.
    """
    code = f"{role}-features"
    drop = "Drop the feature with ALTER TABLE ... DROP FEATURE, or create a new table without it."
    with tempfile.TemporaryDirectory(prefix="windrow-doctor-") as folder:
        _like(table, Path(folder))
        trials = {"read": _read, "follow the change feed of": _follow, "write": _write}
        failed = {what: why for what, work in trials.items() if (why := _failure_of(partial(work, folder)))}
    verb, refused = next(iter(failed.items()), ("", ""))
    what = f"delta-rs cannot {verb} the {role}: {refused}"
    if not refused:
        yield ok(code, f"delta-rs can read and write it ({_protocol(table)})")
    elif verb != "write" and role == "depot" and engine == "spark":
        yield warning(code, what, f"Spark can run; `show` for a message and `verify` cannot read it. {drop}")
    elif verb != "write":
        yield error(code, what, f"status, show, verify and the embedded engine need it. {drop}")
    elif role == "ledger" and engine == "embedded":
        yield error(code, what, f"The embedded engine cannot commit. {drop}")
    else:
        yield warning(code, what, f"Only Spark can write it. {drop}")


def named(failure: str) -> str:
    """Return the features that an error of delta-rs names, else the error."""
    listed = re.search(r"features required: \[(.*?)\]", failure) or re.search(r"Feature '(.*?)' is not", failure)
    return listed[1] if listed else failure


def _like(table: DeltaTable, folder: Path) -> None:
    """Write the first commit of a table with the same protocol, schema and properties."""
    protocol, metadata = table.protocol(), table.metadata()
    versions: dict[str, object] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    features = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    described = {
        "id": str(metadata.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "configuration": metadata.configuration,
        "createdTime": 0,
    }
    actions = [
        {"protocol": versions | {name: value for name, value in features.items() if value is not None}},
        {"metaData": described},
    ]
    log = folder / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text("\n".join(json.dumps(action) for action in actions), encoding="utf-8")


def _failure_of(work: Callable[[], object]) -> str:
    """Return why delta-rs cannot do some work, empty if it can."""
    try:
        work()
    except FAILURES as failed:
        return named(first_line(failed))
    return ""


def _read(location: str) -> None:
    pa.RecordBatchReader.from_stream(DeltaTable(location).scan()).read_all()


def _follow(location: str) -> None:
    """Read the change feed, which some features prevent (column mapping) although plain reads work."""
    table = DeltaTable(location)
    if table.metadata().configuration.get(FEED) == "true":
        pa.RecordBatchReader.from_stream(table.load_cdf(starting_version=0)).read_all()


def _write(location: str) -> None:
    table = DeltaTable(location)
    write_deltalake(table, pa.schema(table.schema().to_arrow()).empty_table(), mode="append")


def _protocol(table: DeltaTable) -> str:
    protocol = table.protocol()
    used = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    versions = f"protocol {protocol.min_reader_version}, {protocol.min_writer_version}"
    return f"{versions}: {', '.join(used)}" if used else versions

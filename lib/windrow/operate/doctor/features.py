"""Check which features of a Delta table delta-rs cannot read or write, by trying, since a list would become outdated.

The trial uses an empty table in a temporary directory with the protocol, schema and properties of the table in
question. That table itself is not touched.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from windrow.errors import first_line
from windrow.model.commits import FEED
from windrow.operate.doctor.finding import Finding, ok

DROP = "Drop the feature with ALTER TABLE ... DROP FEATURE, or create a new table without it."


def check_features(role: str, table: DeltaTable, engine: str) -> Iterator[Finding]:
    """Try to read and write a table like this one (`role`: depot or ledger) with delta-rs, and report what fails.

    Every command without a JVM needs reading; the embedded engine needs writing, and so does `ingest` for a depot.
    """
    code, protocol = f"{role}-features", table.protocol()
    with tempfile.TemporaryDirectory(prefix="windrow-doctor-") as folder:
        _write_empty_copy(table, Path(folder))
        refusal = _refusal(folder)
    if refusal is None:
        used = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
        versions = f"protocol {protocol.min_reader_version}, {protocol.min_writer_version}"
        described = f"{versions}: {', '.join(used)}" if used else versions
        yield ok(code, f"delta-rs can read and write it ({described})")
        return
    verb, why = refusal
    if verb == "write":
        is_error = role == "ledger" and engine == "embedded"
        todo = "The embedded engine cannot commit." if is_error else "Only Spark can write it."
    else:
        is_error = not (role == "depot" and engine == "spark")
        todo = "status, show, verify and the embedded engine need it."
        todo = todo if is_error else "Spark can run; `show` for a message and `verify` cannot read it."
    yield Finding(
        "error" if is_error else "warning", code, f"delta-rs cannot {verb} the {role}: {why}", f"{todo} {DROP}"
    )


def _write_empty_copy(table: DeltaTable, folder: Path) -> None:
    """Write the first commit of a table with the same protocol, schema and properties."""
    protocol, metadata = table.protocol(), table.metadata()
    versions = {"minReaderVersion": protocol.min_reader_version, "minWriterVersion": protocol.min_writer_version}
    features = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    described = {
        "id": str(metadata.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "configuration": metadata.configuration,
        "createdTime": 0,
    }
    named = {name: value for name, value in features.items() if value is not None}
    actions = [{"protocol": versions | named}, {"metaData": described}]
    (folder / "_delta_log").mkdir()
    entry = folder / "_delta_log" / f"{0:020}.json"
    entry.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")


def _refusal(location: str) -> tuple[str, str] | None:
    """Return what delta-rs cannot do with a table, and the features that its error names, or else the error.

    Some features, such as column mapping, prevent reading the change feed although plain reads work.
    """
    verb = "read"
    try:
        table = DeltaTable(location)
        pa.RecordBatchReader.from_stream(table.scan()).read_all()
        verb = "follow the change feed of"
        if table.metadata().configuration.get(FEED) == "true":
            pa.RecordBatchReader.from_stream(table.load_cdf(starting_version=0)).read_all()
        verb = "write"
        write_deltalake(table, pa.schema(table.schema().to_arrow()).empty_table(), mode="append")
    except (DeltaError, pa.ArrowException, OSError, ValueError) as failed:
        line = first_line(failed)
        named = re.search(r"features required: \[(.*?)\]", line) or re.search(r"Feature '(.*?)' is not", line)
        return verb, named[1] if named else line
    return None

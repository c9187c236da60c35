"""Raw bytes into typed fields: CSV and JSON, clean and with bad records, next to pyarrow and Spark's reader.

Ours is the whole stage of a microbatch on the driver: chunks of 1 MiB, checksums, framing, values, reasons, on one core
and on two. pyarrow reads the clean file in memory with one thread, as it stops at the first bad record; Spark reads the
file with the types given and, for CSV, `multiLine`, without which it cuts quoted records.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from benchmarks.conditions import Conditions
from benchmarks.row import Measurement, at_least, at_most, memory, speeds
from benchmarks.turns import time_interleaved, timed
from windrow.formats.format import Format, format_of
from windrow.formats.raw.source import SCHEMA
from windrow.formats.raw.stage import stage
from windrow.formats.settings import FormatSettings
from windrow.model.chunks import CHUNK_BYTES, Chunk, cut, rows

SMALL_BYTES = 64
SOURCES = 20_000
FIELDS = {"id": "int64", "device": "string", "value": "float64", "at": "timestamp[us]", "ok": "bool", "note": "string"}
SPARK = "id BIGINT, device STRING, value DOUBLE, at TIMESTAMP, ok BOOLEAN, note STRING"
BAD = (0, 0.001, 0.01)
AIMS = {"csv": {0: 0.9, 0.01: 0.8}, "json": {0: 2, 0.01: 1.5}}  # of pyarrow's speed, by the share of bad records


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Measure each format with each share of bad records, and against each reader."""
    count = conditions.size(300_000, 300)
    kinds: tuple[tuple[str, Callable[[int], bytes], Callable[[bytes], object]], ...] = (
        ("csv", _csv, _arrow_csv),
        ("json", _json, _arrow_json),
    )
    for kind, line, arrow in kinds:
        clean = _file(count, line, 0)
        format_ = format_of(FormatSettings(type=kind, fields=FIELDS, has_header=False))  # as a run does, once
        for share in BAD:
            name = f"{kind}, {share:.1%} bad" if share else f"{kind}, clean"
            ours = partial(timed, partial(_on_cores, 1, _staged, format_, _chunks(_file(count, line, share)), count))
            taken = time_interleaved(
                {name: ours, "pyarrow": partial(timed, partial(arrow, clean))}, conditions.rounds, tell=conditions.tell
            )
            aim = AIMS[kind].get(share)
            yield speeds(name, taken[name], "pyarrow, clean", taken["pyarrow"], at_least(aim) if aim else None)
        chunks = _chunks(clean)
        one_core, two_cores = (
            partial(timed, partial(_on_cores, cores, _staged, format_, chunks, count)) for cores in (1, 2)
        )
        taken = time_interleaved(
            {"two cores": two_cores, "one core": one_core}, conditions.rounds, tell=conditions.tell
        )
        yield speeds(f"{kind}, one source, two cores", taken["two cores"], "one core", taken["one core"], at_least(1.6))
        path = conditions.directory / f"file.{kind}"
        path.write_bytes(clean)
        runs = {
            kind: partial(timed, partial(_staged, format_, _chunks(clean), count)),
            "Spark": partial(timed, partial(_spark, conditions, kind, path)),
        }
        taken = time_interleaved(runs, conditions.rounds, tell=conditions.tell)
        yield speeds(f"{kind}, clean", taken[kind], "Spark's reader", taken["Spark"], at_least(3))

    yield from _small(conditions)


def _small(conditions: Conditions) -> Iterator[Measurement]:
    """Measure many small buffers of one source, and the second microbatch of many sources."""
    count = conditions.size(60_000, 300)
    data = _file(count, _csv, 0)
    chunks = _chunks(data, SMALL_BYTES)
    format_ = format_of(FormatSettings(type="csv", fields=FIELDS, has_header=False))
    ours = [timed(partial(_staged, format_, chunks, count)) for _ in range(conditions.rounds)]
    yield Measurement(f"csv, buffers of {SMALL_BYTES} bytes", len(data) / median(ours) / 1e6, "MB/s", aim=at_least(20))
    sources = conditions.size(SOURCES, 30)
    first, second = (_of_sources(sources, version) for version in (1, 2))
    partial_rows = stage(first, SCHEMA.empty_table(), format_).partial
    ours = [timed(partial(stage, second, partial_rows, format_)) for _ in range(conditions.rounds)]
    yield Measurement(f"csv, a buffer of each of {sources:,} sources", median(ours), "s", aim=at_most(1.5))
    grown = _grown_bytes(partial(stage, second, partial_rows, format_))
    yield memory(f"csv, a buffer of each of {sources:,} sources, memory", grown, at_most(0.3))
    few = second.slice(0, max(1, sources // 200))
    ours = [timed(partial(stage, few, partial_rows, format_)) for _ in range(conditions.rounds)]
    yield Measurement(f"csv, a buffer of {few.num_rows:,} of {sources:,} sources", median(ours), "s", aim=at_most(0.05))


def _on_cores(cores: int, call: Callable[..., object], *arguments: object) -> None:
    """Make a call with so many threads of Arrow, which parse as many parts of what was read."""
    before = pa.cpu_count()
    pa.set_cpu_count(cores)
    try:
        call(*arguments)
    finally:
        pa.set_cpu_count(before)


def _grown_bytes(call: Callable[[], object]) -> int:
    """Return by how much a call raises the process's peak of resident memory."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    _returned = call()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _of_sources(sources: int, version: int) -> pa.Table:
    """Return a chunk of each source, which begins and ends within a record."""
    parts = [_csv(number) for number in range(sources)]
    tables = [
        rows(f"source {number}", [Chunk(version, part[20:] + part + part[:20], last=False)], 0)
        for number, part in enumerate(parts)
    ]
    together = pa.concat_tables(tables).combine_chunks()
    return together.append_column("version", pa.array([version] * sources, pa.int64()))


def _file(count: int, line: Callable[[int], bytes], share: float) -> bytes:
    """Return so many records, of which a share is bad."""
    every = round(1 / share) if share else count + 1
    return b"".join(line(number) if (number + 1) % every else b"nonsense\n" for number in range(count))


def _csv(number: int) -> bytes:
    at = f"2026-01-{1 + number % 28:02d}T12:00:{number % 60:02d}.{number % 1_000_000:06d}Z"
    return f'{number},dev{number % 97},{number * 0.37:.4f},{at},true,"note {number % 1000}"\n'.encode()


def _json(number: int) -> bytes:
    at = f"2026-01-{1 + number % 28:02d}T12:00:{number % 60:02d}.{number % 1_000_000:06d}Z"
    record = {"id": number, "device": f"dev{number % 97}", "value": round(number * 0.37, 4), "at": at, "ok": True}
    return json.dumps(record | {"note": f"note {number % 1000}"}).encode() + b"\n"


def _chunks(data: bytes, chunk_bytes: int = CHUNK_BYTES) -> pa.Table:
    """Return a file as it comes from a raw depot."""
    chunks = rows("file", list(cut([data], chunk_bytes)), 0)
    return chunks.append_column("version", pa.array([1] * chunks.num_rows, pa.int64()))


def _staged(format_: Format, chunks: pa.Table, count: int) -> None:
    """Make fields of chunks as a microbatch does."""
    staged = stage(chunks, SCHEMA.empty_table(), format_)
    if staged.fields.num_rows + staged.rejects.num_rows != count:
        raise RuntimeError("records are missing")


def _arrow_csv(data: bytes) -> None:
    pyarrow.csv.read_csv(
        io.BytesIO(data),
        pyarrow.csv.ReadOptions(column_names=list(FIELDS), use_threads=False),
        convert_options=pyarrow.csv.ConvertOptions(column_types=_types()),
    )


def _arrow_json(data: bytes) -> None:
    schema = pa.schema(_types() | {"at": pa.timestamp("us")})  # it knows no zones
    pyarrow.json.read_json(
        io.BytesIO(data),
        pyarrow.json.ReadOptions(use_threads=False),
        pyarrow.json.ParseOptions(explicit_schema=schema),
    )


def _types() -> dict[str, pa.DataType]:
    return {field.name: field.type for field in format_of(FormatSettings(type="csv", fields=FIELDS)).parser.schema}


def _spark(conditions: Conditions, kind: str, path: Path) -> None:
    reader = conditions.spark().read.schema(SPARK)
    reader = reader.option("multiLine", "true") if kind == "csv" else reader
    reader.format(kind).load(str(path)).write.format("noop").mode("overwrite").save()

"""What the peers batch: the bundled sample, and a larger input of the same kind, as depots of several versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

Ints = npt.NDArray[np.int64]
TIME = pa.timestamp("us", tz="UTC")
TIMES = ("event_time", "received_at")
START = 1_750_000_000_000_000
SAMPLE = """
SELECT split_part(topic, '/', 2) AS source, split_part(topic, '/', 2) AS key, topic AS type,
       CAST(1000000 * CAST(split_part(CAST(payload AS VARCHAR), ':', 1) AS DECIMAL(20, 6)) AS BIGINT) AS event_time,
       received_at_ns // 1000 AS received_at, CAST(payload AS VARCHAR) AS payload
FROM read_parquet(?) ORDER BY received_at_ns"""


def sample(messages: int | None = None) -> pa.Table:
    """Return the messages of the bundled sample, or the first of them, mapped by `windrow.ingest.sample.COLUMNS`."""
    with as_file(files("windrow") / "data" / "collectd.parquet") as bundled:
        rows = duckdb.sql(SAMPLE, params=[str(bundled)]).to_arrow_table()
    return _timed(rows.slice(0, messages))


def generated(messages: int, keys: int = 100, types: int = 20, seed: int = 1, first: int = 0) -> pa.Table:
    """Return messages of devices that measure each second for ten seconds, then pause for twelve, so that sessions end.

    One message in fifty is late, by up to 8 s. They are counted from `first`, so that a large input comes in pieces.
    """
    random = np.random.default_rng(seed)
    number = np.arange(first, first + messages)
    second = number // (keys * types)
    event_time = START + (second + second // 10 * 12) * 1_000_000 + random.integers(0, 900_000, messages)
    delay = np.where(random.random(messages) < 0.02, random.integers(0, 8_000_000, messages), 50_000)
    key = named("device", number // types % keys, keys)
    payload = pa.array(np.char.add("value ", random.integers(0, 1_000_000, messages).astype(str)))
    return arrived(key, key, named("measurement", number % types, types), event_time, event_time + delay, payload)


def named(kind: str, number: Ints, count: int) -> pa.Array:
    """Return the names of things of a kind, `kind-0`, `kind-1` and so on, of which there are `count`."""
    return pa.array([f"{kind}-{index}" for index in range(count)]).take(pa.array(number))


def arrived(
    source: pa.Array, key: pa.Array, kind: pa.Array, event_time: Ints, received_at: Ints, payload: pa.Array
) -> pa.Table:
    """Return messages in the order of their arrival; times are microseconds."""
    columns = (source, key, kind, pa.array(event_time), pa.array(received_at), payload)
    names = ["source", "key", "type", "event_time", "received_at", "payload"]
    return _timed(pa.Table.from_arrays(columns, names).sort_by("received_at"))


def wake_up(after: pa.Table) -> pa.Table:
    """Return one message of somebody else, an hour later: it moves a watermark, and belongs to no batch of the rest."""
    last = max(after["received_at"].cast(pa.int64()).to_numpy()) + 3_600_000_000
    row = {
        "source": "wake-up",
        "key": "wake-up",
        "type": "wake-up",
        "event_time": last,
        "received_at": last,
        "payload": "",
    }
    return _timed(pa.Table.from_pylist([row]))


def write(depot: Path, messages: pa.Table, versions: int, order: Sequence[int] | None = None) -> None:
    """Write a depot whose versions are equal parts of the messages, in the order of arrival or another."""
    ends = np.linspace(0, messages.num_rows, versions + 1).astype(int)
    into: str | DeltaTable = str(depot)
    for number in order or range(versions):
        part = messages.slice(ends[number], ends[number + 1] - ends[number])
        write_deltalake(into, part, mode="append", configuration={"delta.enableChangeDataFeed": "true"})
        into = into if isinstance(into, DeltaTable) or versions == 1 else DeltaTable(into)


def write_many(depot: Path, messages: pa.Table, versions: int) -> None:
    """Write a depot of many small versions, as `write` does, but each log entry as a copy of the last one of delta-rs.

    delta-rs takes a twentieth of a second for each, which is most of an hour for a day's versions of a producer.
    """
    size = messages.num_rows // versions
    write(depot, messages.slice(0, 2 * size), 2)
    entry = (depot / "_delta_log" / f"{1:020}.json").read_text(encoding="utf-8")
    [action] = [action["add"] for line in entry.splitlines() if "add" in (action := json.loads(line))]
    for number in range(2, versions):
        part, path = messages.slice(number * size, size), f"part-{number:05}.parquet"
        pq.write_table(part, depot / path, compression="snappy")
        added = action | {
            "path": path,
            "size": (depot / path).stat().st_size,
            "stats": json.dumps({"numRecords": size}),
        }
        lines = [json.dumps({"add": added}) if "add" in json.loads(line) else line for line in entry.splitlines()]
        (depot / "_delta_log" / f"{number:020}.json").write_text("\n".join(lines), encoding="utf-8")
    DeltaTable(depot).create_checkpoint()


def _timed(table: pa.Table) -> pa.Table:
    fields = [pa.field(name, TIME if name in TIMES else pa.string()) for name in table.schema.names]
    return table.cast(pa.schema(fields))

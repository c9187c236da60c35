"""The invariants that `windrow check` looks at, by DuckDB over what was read of a ledger version."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import exploded, numbers, pairwise
from windrow.verify.history import versions_read
from windrow.verify.invariants import SUITES, Invariant, counting, for_duckdb, views
from windrow.verify.report import Difference, differing
from windrow.verify.snapshot import Snapshot

UNCHECKED = "the invariants were not checked: that needs duckdb, pip install 'windrow-delta[embedded]'"
CRITICAL = tuple(one for suite in SUITES.values() for one in suite if one.severity == "critical")
NAMES = {name: name for name in views("")}
CONTROL = pa.schema([("microbatch", pa.int64()), ("depot_version", pa.int64()), ("rules", pa.string())])


def can_check() -> bool:
    """Tell whether DuckDB is installed."""
    return find_spec("duckdb") is not None


def check_invariants(snapshot: Snapshot) -> Iterator[Difference]:
    """Check the critical invariants: a pass over each relation counts, and what fails is looked up."""
    import duckdb

    with duckdb.connect(config={"enable_external_access": False}) as connection:
        for name, rows in _rows(snapshot).items():
            connection.register(name, rows)
        failed = [
            name
            for counts in counting(CRITICAL, NAMES)
            for name, count in connection.sql(for_duckdb(counts)).to_arrow_table().to_pylist()[0].items()
            if count
        ]
        for invariant in CRITICAL:
            if invariant.name in failed:
                yield from _differences(invariant, connection, snapshot.version)


def _differences(invariant: Invariant, connection: Any, version: int) -> Iterator[Difference]:
    """Return the difference that the failing rows of an invariant make."""
    rows = connection.sql(for_duckdb(invariant.statement(NAMES))).to_arrow_table()
    types = [pa.int64() if pa.types.is_decimal(field.type) else field.type for field in rows.schema]
    rows = rows.cast(pa.schema(list(zip(rows.column_names, types, strict=True))))  # sums, which JSON does not know
    yield from differing(invariant.name, invariant.about, rows, "rows", version)


def _rows(snapshot: Snapshot) -> dict[str, pa.Table]:
    """Return what the relations are made of, as `windrow.verify.invariants.views` has it."""
    history, clocks = snapshot.history, exploded(snapshot.history, "clocks")
    progress = {name: [getattr(snapshot.progress, name)] * snapshot.progress_rows for name in CONTROL.names}
    return {
        "rows": _ids(snapshot),
        "batches": snapshot.batches,
        "messages": _messages(snapshot),
        "rejected": snapshot.rejections,
        "microbatches": history.drop_columns(["versions", "clocks"]),
        "versions": versions_read(snapshot),
        "clocks": clocks.append_column("microbatch", history["microbatch"].take(clocks["row"])),
        "progress": pa.table(progress, CONTROL),
        "sources": snapshot.sources,
    }


def _ids(snapshot: Snapshot) -> pa.Table:
    """Return `id` and `state` of all rows that have an id of their own; the progress row is counted apart."""
    parts = {"rejected": snapshot.rejections, "microbatch": snapshot.history, "progress": snapshot.sources}
    if snapshot.raw:
        parts["partial"] = snapshot.raw.partial
    rows = [snapshot.batches.select(["id", "state"])]
    for state, part in parts.items():
        rows.append(part.select(["id"]).append_column("state", pa.repeat(state, part.num_rows)))
    return pa.concat_tables(rows)


def _messages(snapshot: Snapshot) -> pa.Table:
    """Return the messages with their batch, each with its content_bytes and the time of the one before it."""
    messages, batches = snapshot.messages, snapshot.batches
    row, time = numbers(messages["row"]), messages["event_time"].combine_chunks()
    first = pairwise(row, np.not_equal, first=True)
    content_bytes = [pc.fill_null(pc.binary_length(messages[name]), 0).cast(pa.int64()) for name in ("type", "payload")]
    of_batch = {"batch": "id"} | {name: name for name in ("state", "source", "key", "window_start", "window_end")}
    return pa.table(
        {new: pa.DictionaryArray.from_arrays(row, batches[name].combine_chunks()) for new, name in of_batch.items()}
        | {name: messages[name] for name in ("type", "event_time", "received_at")}
        | {
            "content_bytes": pc.add(*content_bytes),
            "previous_event_time": time.take(pa.array(np.arange(row.size) - 1, mask=first)),
        }
    )

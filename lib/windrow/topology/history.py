"""The history of a topology: its microbatches, and those that count because no rollback took them back."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from windrow.columnar.arrow import plain
from windrow.delta.table import open_table, reading
from windrow.engine.protocol import WholeEngine

COLUMNS = [
    "microbatch", "kind", "depot", "depot_version", "versions", "planned_id", "planned_at", "options_used",
    "events_fired", "rules",
]  # fmt: skip
Row = dict[str, Any]


def history_rows(location: str, columns: list[str]) -> pa.Table:
    """Return columns of the history in order; a microbatch has one row for each depot that it read, or one alone."""
    with reading(location, "ledger"):
        table = open_table(location, "ledger")
        found = table.to_pyarrow_table(filters=[("state", "=", "microbatch")], columns=columns)
    return plain(found).sort_by([("microbatch", "ascending"), ("depot", "ascending")])


def history_of(engine: WholeEngine) -> list[Row]:
    """Return the rows of the history in order."""
    rows: list[Row] = history_rows(str(engine.path_of("ledger")), COLUMNS).to_pylist()
    return rows


def counting(rows: list[Row]) -> list[Row]:
    """Return the rows of the microbatches that ran functions and that no rollback took back, in order."""
    kept: list[Row] = []
    for row in rows:
        if row["kind"] == "rollback" and row["options_used"] is not None:
            to = json.loads(row["options_used"])["to_microbatch"]
            kept = [one for one in kept if one["microbatch"] <= to]
        elif row["kind"] in ("data", "tick"):
            kept.append(row)
    return kept

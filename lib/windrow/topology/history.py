"""The history of a topology: its microbatches, and those that count because no rollback took them back."""

from __future__ import annotations

import json
from typing import Any

from windrow.columnar.arrow import plain
from windrow.delta.table import open_table, reading
from windrow.engine.protocol import Engine

COLUMNS = [
    "microbatch", "kind", "depot", "depot_version", "versions", "planned_id", "planned_at", "options_used",
    "events_fired", "rules",
]  # fmt: skip
Row = dict[str, Any]


def history_of(engine: Engine) -> list[Row]:
    """Return the rows of the history in order; a microbatch has one for each depot that it read, or one alone."""
    location = str(engine.path_of("ledger"))
    with reading(location, "ledger"):
        table = open_table(location, "ledger")
        found = table.to_pyarrow_table(filters=[("state", "=", "microbatch")], columns=COLUMNS)
    rows: list[Row] = plain(found).sort_by([("microbatch", "ascending"), ("depot", "ascending")]).to_pylist()
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

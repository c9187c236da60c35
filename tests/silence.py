"""Logs of writers that say less than Spark and delta-rs do."""

from __future__ import annotations

import json
from pathlib import Path

from windrow.delta.table import OPEN_TABLES


def silence(location: str, *names: str) -> None:
    """Take `operationMetrics`, or the `stats` of files, out of the log of a table, as if nobody had written them."""
    for entry in (Path(location) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            for content in action.values():
                for name in names:
                    content.pop(name, None)
        entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    OPEN_TABLES.clear()

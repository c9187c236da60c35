"""The result of a query as a table of a page: made, compared, and with WRITE_DOCS=1 written into the page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tests.docs.pages import ROOT, Table

WRITE = bool(os.environ.get("WRITE_DOCS"))
VARIES = "…"


def shown(result: pa.Table, varying: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a result as the lines of a table; columns that differ from run to run are left out."""
    names = result.column_names
    hidden = set(varying)
    rows = [[VARIES if name in hidden else cell(row[name]) for name in names] for row in result.to_pylist()]
    return (_line(names), _line(["---"] * len(names)), *(_line(row) for row in rows))


def cell(value: Any) -> str:
    """Return a value as it stands in a table: times to the millisecond, in UTC."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")
    if isinstance(value, dict):
        return ", ".join(f"{name}: {cell(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return "; ".join(cell(inner) for inner in value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.rstrip("\0").replace("|", "\\|")


def write(page: str, results: Sequence[tuple[Table, tuple[str, ...]]]) -> None:
    """Put results into the page, the last first, so that the lines above keep their numbers."""
    path = ROOT / page
    lines = path.read_text(encoding="utf-8").splitlines()
    for table, result in reversed(results):
        lines[table.start : table.end] = ["", *result]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"

"""docs/tables.md has the columns of the tables, with their types; docs/platforms.md has what a platform refuses."""

from __future__ import annotations

import re
from itertools import chain, cycle

import pyarrow as pa
import pytest

from tests.docs.pages import ROOT
from tests.engine.restricted.daily import REFUSED
from windrow.columnar.arrow import TIME
from windrow.model import messages, tables

TEXT = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
NAMES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.float64(): "double",
    TIME: "timestamp",
}
MESSAGE = {field.name: field.type for field in messages.schema()}
BATCH = dict(tables.batch_fields(pa.string()))
REJECTED = dict(tables.rejected_fields(pa.string()))
HISTORY = dict(tables.HISTORY)
EVERY = {"id": pa.string(), "state": pa.string(), **dict(tables.ROW_FIELDS)}


def rows(heading: str) -> dict[str, str]:
    """Return the columns in the table under a heading with their types, which may be empty."""
    section = TEXT.split(f"\n## {heading}")[1].split("\n## ")[0]
    cells = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    return dict(chain.from_iterable(columns(row[1].strip(), row[2].strip()) for row in cells))


def columns(names: str, types: str) -> list[tuple[str, str]]:
    """Return the columns of a row: one, several with one type or one each, or `a` ... `z` of a message."""
    if " ... " in names:
        return [(name, "") for name in MESSAGE]
    return list(zip(re.findall(r"`(\w+)`", names), cycle(types.split(", ")), strict=False))


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type in SQL."""
    return "array of struct" if pa.types.is_list(kind) else NAMES[kind]


@pytest.mark.parametrize(
    ("heading", "real"),
    [
        ("Depot", MESSAGE),
        ("Every row of the ledger", EVERY),
        ("`state IN ('open', 'closed')`", {name: kind for name, kind in BATCH.items() if name != "state"}),
        ("`state = 'rejected'`", REJECTED),
        ("`state = 'microbatch'`", {**HISTORY, "token": pa.string()}),
    ],
)
def test_columns(heading: str, real: dict[str, pa.DataType]) -> None:
    """The page has every column of a table, and no other, with its type where it says one."""
    documented = rows(heading)
    assert set(documented) == set(real)
    for name, kind in documented.items():
        assert kind in ("", "string or binary", type_name(real[name])), name


def test_query_of_live_rows() -> None:
    """The page has the query that takes the versions of open batches that count."""
    section = TEXT.split("\n## Every row of the ledger")[1].split("\n## ")[0]
    [query] = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    normalized = re.sub(r"(?<=\() | (?=\))", "", " ".join(query.split()))
    assert normalized == tables.live_rows("delta.`/srv/data/ledger`", "state = 'open'")


def test_progress() -> None:
    """The columns of the progress rows are named in the text about them."""
    about = TEXT.split("## `state = 'progress'`")[1]
    assert {name for name, _ in tables.PROGRESS_FIELDS} - {"source"} <= set(re.findall(r"`(\w+)`", about))


def test_views() -> None:
    """Each view of the ledger is named on the page of settings, which says where they are made."""
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert all(f"`{view}`" in page for view in tables.views("ledger"))


def test_refused_on_serverless() -> None:
    """The page of platforms has every attempt at what serverless compute refuses once, each with what Windrow does."""
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    table = page.split("| refused | source |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [line.strip("|").split("|") for line in table]
    assert all(len(row) == 4 and all(map(str.strip, row)) for row in cells)
    assert sorted(name for row in cells for name in re.findall("`(.*?)`", row[2])) == sorted(REFUSED)

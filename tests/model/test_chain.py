"""The chain of the history: its links are those of its description, and depend on all that came before."""

from __future__ import annotations

from hashlib import sha256

import pyarrow as pa
import pytest

from windrow.model import tables
from windrow.model.chain import CHAIN, LINKED, link_rows

SCHEMA = pa.schema([("microbatch", pa.int64()), ("id", pa.string()), *tables.HISTORY[2:]])


def row(microbatch: int, **columns: object) -> dict[str, object]:
    """Return a row of the history."""
    fixed = {"kind": "data", "versions": [{"version": 1, "messages": 2, "fingerprint": "log:ab"}], "clocks": []}
    return {"microbatch": microbatch, "id": f"microbatch/{microbatch}", **fixed, "rules": "{}", **columns}


def links_of(*rows: dict[str, object], before: str | None = None) -> list[str]:
    """Return the links of some rows."""
    links: list[str] = link_rows(pa.Table.from_pylist(list(rows), SCHEMA), before)[CHAIN].to_pylist()
    return links


def test_by_hand() -> None:
    """A link is what another program computes from the description."""
    fields = b"12:microbatch/1,4:data,~21:17:1:1,1:2,6:log:ab,,,~~~~~0:,2:{},"
    digest = sha256(fields).hexdigest()
    first = sha256(f"~64:{digest},".encode()).hexdigest()
    assert links_of(row(1)) == [first]
    digest = sha256(fields.replace(b"/1", b"/2")).hexdigest()
    assert links_of(row(2), before=first) == [sha256(f"64:{first},64:{digest},".encode()).hexdigest()]


def test_order() -> None:
    """The rows of several depots follow each other by id, whatever order they come in."""
    first, second = row(3), row(3, id="microbatch/3/depot")
    assert links_of(second, first) == links_of(first, second)


@pytest.mark.parametrize("name", [name for name in LINKED if name not in {"id", "versions", "clocks"}])
def test_every_column(name: str) -> None:
    """Each column that is linked changes the link, and all those after it."""
    value = "x" if name in {"kind", "rules"} else 9
    before, after = links_of(row(1), row(2)), links_of(row(1, **{name: value}), row(2))
    assert all(link_before != link_after for link_before, link_after in zip(before, after, strict=True))


def test_versions_and_clocks() -> None:
    """Fingerprints of depot versions and clocks change it too."""
    others = [
        {"versions": [{"version": 1, "messages": 2, "fingerprint": "log:ac"}]},
        {"clocks": [{"source": "a", "clock": 1, "floor": 1, "cut": None, "flushed_at": None}]},
    ]
    assert len({*links_of(row(1)), *(links_of(row(1, **other))[0] for other in others)}) == 3

"""Digests against the written form, spelt out by hand in plain Python."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import Row, log, message, microseconds
from windrow.model.canonical import BATCH, MESSAGE, REJECTED
from windrow.reading.digests import LedgerSelection


def netstring(value: Any) -> bytes:
    """Return a value as the definition says."""
    if value is None:
        return b"~"
    if isinstance(value, datetime):
        value = microseconds(value)
    if isinstance(value, bool):
        value = "true" if value else "false"
    encoded = value if isinstance(value, bytes) else str(value).encode()
    return b"%d:%s," % (len(encoded), encoded)


def canonical(row: Row) -> bytes:
    """Return a row of a ledger as the definition says."""
    if row["state"] == "rejected":
        return b"".join(netstring(row[name]) for name in REJECTED)
    inside = b"".join(b"".join(netstring(message[name]) for name in MESSAGE) for message in row["messages"])
    return b"".join(netstring(row[name]) for name in BATCH) + netstring(inside)


def of(rows: list[Row]) -> str:
    """Return the digest of rows."""
    lines = sorted((row["id"].encode(), sha256(canonical(row)).hexdigest()) for row in rows)
    return sha256(b"".join(netstring(id_) + netstring(digest) for id_, digest in lines)).hexdigest()


@pytest.fixture(params=[pa.string(), pa.binary()], ids=["text", "bytes"])
def world(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> World:
    """A ledger of several microbatches; keys, types and payloads of odd text."""
    world = World(tmp_path, clock, request.param)
    odd = [message("ä,1:x", NOW, NOW, key="k/\n~", payload="5:~,"), message("", NOW, NOW, key="", sequence=-1)]
    rows = [odd, *log(versions=4)]
    if pa.types.is_binary(request.param):
        rows = [[row | {"payload": row["payload"] and row["payload"].encode()} for row in part] for part in rows]
    world.publish(*rows)
    world.runner(embedded, max_messages=40).once()
    return world


class TestDigests:
    def test_as_written(self, world: World) -> None:
        """Digests of rows, of microbatches and of all are those of the written form."""
        rows = world.rows("open", "closed", "rejected")
        digests = windrow.digests(world.ledger)
        assert digests.total == of(rows)
        by_id = {row["id"]: row for row in digests.rows.to_pylist()}
        assert {id_: row["digest"] for id_, row in by_id.items()} == {
            row["id"]: sha256(canonical(row)).hexdigest() for row in rows
        }
        for part in digests.microbatches().to_pylist():
            finished = [row for row in rows if part["microbatch"] in (row["closed_microbatch"], row["microbatch"])]
            assert (part["rows"], part["digest"]) == (len(finished), of(finished))
        assert {row["state"] for row in rows} == {"open", "closed", "rejected"}

    def test_of_a_part(self, world: World) -> None:
        """A part is what later microbatches finished and what is open, of some keys."""
        rows = world.rows("open", "closed", "rejected")
        later = [row for row in rows if (row["closed_microbatch"] or row["microbatch"] or 99) > 2 and row["key"] == "k"]
        assert windrow.digests(world.ledger, LedgerSelection(after=2, streams={"key": ("k",)})).total == of(later)

    def test_at_a_version(self, world: World) -> None:
        """A version that can be read has its digest; of an empty ledger it is that of nothing."""
        assert windrow.digests(world.ledger, version=0).total == sha256(b"").hexdigest()
        assert windrow.digests(world.ledger, version=2).total == of(world.rows("open", "closed", "rejected", version=2))

    def test_of_text_and_bytes(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """Payloads of the same bytes have one digest, whether the tables hold them as text or not."""
        totals = set()
        for name, type_, payload in (("text", pa.string(), "ä"), ("bytes", pa.binary(), "ä".encode())):
            world = World(tmp_path / name, clock, type_)
            world.publish([message(payload=payload)])
            world.runner(embedded).once()
            totals.add(windrow.digests(world.ledger).total)
        assert len(totals) == 1

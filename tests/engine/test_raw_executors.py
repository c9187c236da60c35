"""A raw depot on Spark's executors leaves the ledger that the driver and the embedded engine leave."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.test_raw import BAD, CSV, ROWS, Raw
from windrow.delta.log import DeltaRsLog
from windrow.errors import RetriesExhaustedError
from windrow.formats.codecs import encode
from windrow.model.commits import Commit

TRANSIENT = {
    "token",
    "engine",
    "processed_on",
    "commit_mode",
    "started_at",
    "prime_ms",
    "plan_ms",
    "process_ms",
    "committed_at",
}
Chunk = tuple[Any, ...]


def depot_of(root: Path, clock: ManualClock) -> Raw:
    """Return an empty raw depot."""
    root.mkdir()
    return Raw(root, clock)


def dirty(shape: random.Random) -> bytes:
    """Return rows with bad ones among them, wherever these come."""
    rows = list(ROWS[1:])
    for bad in BAD:
        rows.insert(shape.randrange(len(rows)), bad)
    return ROWS[0] + b"".join(rows)


def cut(source: str, data: bytes, shape: random.Random, most: int) -> list[Chunk]:
    """Cut a source at random into chunks, of which the last says so."""
    parts = []
    while data:
        size = shape.randrange(1, most)
        parts.append(data[:size])
        data = data[size:]
    return [(source, number, part, number == len(parts)) for number, part in enumerate(parts, 1)]


def sources(shape: random.Random) -> list[list[Chunk]]:
    """Return the chunks of several sources, one by one as they arrive: plain ones, and others of every kind."""
    order, other = cut("order", dirty(shape), shape, 400), cut("other", b"\xef\xbb\xbf" + dirty(shape), shape, 900)
    edges = cut("edges", dirty(shape), shape, 60)
    shuffled, missing = cut("shuffled", dirty(shape), shape, 700), cut("missing", dirty(shape), shape, 300)
    again, conflict = cut("again", dirty(shape), shape, 500), cut("conflict", dirty(shape), shape, 500)
    long = [("long", 1, ROWS[0] + b"d1,%s\n" % (b"x" * 300) + b"".join(ROWS[1:]), True)]
    del missing[2]
    again.insert(3, again[1])
    conflict.insert(2, (*conflict[0][:2], b"another", False))
    shape.shuffle(shuffled)
    return [order, other, edges, shuffled, missing, again, conflict, long, [("", 0, b"no chunk", False)]]


def versions(shape: random.Random, count: int) -> list[list[Chunk]]:
    """Return the chunks of all sources, over some versions of a depot."""
    chunks_by_version: list[list[Chunk]] = [[] for _ in range(count)]
    for chunks in sources(shape):
        places = sorted(shape.randrange(count) for _ in chunks)
        for place, chunk in zip(places, chunks, strict=True):
            chunks_by_version[place].append(chunk)
    return chunks_by_version


def leftovers(world: Raw) -> list[Any]:
    """Return all that the ledger holds but what differs with every run."""
    rows = world.rows("open", "closed", "rejected", "partial", "microbatch")
    return [{name: value for name, value in row.items() if name not in TRANSIENT} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_same_ledger(tmp_path: Path, clock: ManualClock, spark_engine: EngineFactory, codec: Any) -> None:
    """Chunks of plain and of all other sources, over several microbatches, leave the ledger of the embedded engine: the
    batches, the rejections with their bytes, what is kept, and the books; the history names the path.
    """
    depot = depot_of(tmp_path / "here", clock)
    reference = Raw(tmp_path / "here", clock, ledger="reference")
    chosen = CSV | {"compression": codec, "max_pending_bytes": 2_000}
    for number, chunks in enumerate(versions(random.Random(7), 2)):
        coded = [(*chunk[:2], chunk[2] if codec == "none" else encode(chunk[2], codec), chunk[3]) for chunk in chunks]
        depot.append(*coded, *([("broken", 1, b"no frame", False)] if number == 1 else []))
        reference.run(EngineFactory("embedded"), format=chosen)
        depot.run(spark_engine, format=chosen | {"max_read_bytes": 1})
    assert leftovers(depot) == leftovers(reference)
    assert [row["processed_on"] for row in depot.history()] == ["executors"] * 2
    depot.assert_balanced()


@pytest.mark.ci
def test_short_read(
    tmp_path: Path, clock: ManualClock, spark_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the executors see fewer chunks than the log says were added nothing is written. The source is a plain one:
    another would be read, and looked at, by the driver.
    """
    depot = depot_of(tmp_path / "here", clock)
    depot.append(*cut("order", b"".join(ROWS), random.Random(1), 400))
    really = DeltaRsLog.commits

    def one_more(log: DeltaRsLog, *arguments: int) -> list[Commit]:
        return [replace(commit, rows=commit.rows and commit.rows + 1) for commit in really(log, *arguments)]

    monkeypatch.setattr(DeltaRsLog, "commits", one_more)
    with pytest.raises(RetriesExhaustedError, match="its commit added"):
        depot.run(spark_engine, format=CSV | {"max_read_bytes": 1}, max_retries=0)
    assert depot.history() == []


@pytest.mark.slow
def test_few_chunks(tmp_path: Path, clock: ManualClock, spark_engine: EngineFactory) -> None:
    """Chunks of no more bytes than `max_read_bytes`, and those of which no source is plain, are read by the driver."""
    depot = depot_of(tmp_path / "here", clock)
    first, second, *rest = cut("order", dirty(random.Random(1)), random.Random(1), 400)
    for chunks, most in (([first], 2**28), ([*rest], 1), ([second], 2**28)):
        depot.append(*chunks)
        depot.run(spark_engine, format=CSV | {"max_read_bytes": most})
    assert [row["processed_on"] for row in depot.history()] == ["driver"] * 3


@pytest.mark.slow
def test_greatest_number(tmp_path: Path, clock: ManualClock, spark_engine: EngineFactory) -> None:
    """A number that has no next is rejected among good chunks of its source, as the driver rejects it."""
    depot = depot_of(tmp_path / "here", clock)
    depot.append(*cut("order", b"".join(ROWS), random.Random(1), 400), ("order", 2**63 - 1, b"last", False))
    depot.run(spark_engine, format=CSV | {"max_read_bytes": 1})
    assert [row["processed_on"] for row in depot.history()] == ["executors"]
    assert [(row["reason"], row["content"]) for row in depot.rows("rejected")] == [("format_invalid", b"last")]
    depot.assert_balanced()

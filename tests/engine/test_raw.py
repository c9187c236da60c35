"""A raw depot on both engines: the same messages, rejections and books, however its bytes came."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from windrow.delta.creation import create_depot
from windrow.errors import RetriesExhaustedError, SettingsError
from windrow.formats.codecs import encode
from windrow.formats.format import format_of
from windrow.formats.settings import FormatSettings
from windrow.ledger.live import Live
from windrow.model import messages
from windrow.model.chunks import RAW
from windrow.model.timestamps import time_text
from windrow.source.conversion import Conversion
from windrow.testing.points import Point
from windrow.verify import verify

COLUMNS = {
    "source": "device",
    "key": "device",
    "type": "kind",
    "event_time": "ts",
    "sequence": "chunk * 1000000 + offset",
    "payload": "value",
}
CSV = {
    "type": "csv",
    "fields": {"ts": "timestamp[us]", "device": "string", "kind": "string", "value": "string", "size": "uint8"},
    "max_record_bytes": 200,
    "max_pending_bytes": 1_000,
    "strict": True,
}
SETTINGS = {"depot_columns": COLUMNS, "format": CSV, "rules": {"window": "2h", "max_delay": "1h"}}
ROWS = [
    b"device,ts,kind,value,size\n",
    *(b"d%d,%s,k%d,v,%d\n" % (i % 3, time_text(NOW + i * 500_000).encode(), i % 7, i) for i in range(60)),
]
BAD = [b"nonsense\n", b'd1,"open\n', b"d1,now,k,v,1\n", b"d1,2026-01-01T00:00:00Z,k,v,300\n"]


class Raw(World):
    """A world with a raw depot."""

    def __init__(self, root: Path, clock: ManualClock, ledger: str = "ledger") -> None:
        self.clock, self.payload = clock, pa.string()
        self.depot, self.ledger = str(root / "raw"), str(root / ledger)
        create_depot(self.depot, None)

    def append(self, *chunks: tuple[str, int, bytes, bool]) -> None:
        """Append chunks in one version: source, number, bytes, whether it is the last."""
        columns = [list(column) for column in zip(*chunks, strict=True)]
        times = messages.times(pa.array([NOW + 31_000_000] * len(chunks), pa.int64()).to_numpy())
        write_deltalake(self.depot, pa.table([*columns, times], RAW), mode="append")

    def run(self, factory: EngineFactory, **settings: Any) -> None:
        """Read what is new."""
        self.runner(factory, **(SETTINGS | settings)).once()

    def outcomes(self) -> list[Any]:
        """Return what is in batches and what was rejected, and for which reason."""
        batches = [
            (row["source"], row["key"], row["window_start"], row["messages"]) for row in self.rows("open", "closed")
        ]
        rejected = [(row["id"], row["reason"], row["detail"], row["content"]) for row in self.rows("rejected")]
        return [batches, rejected]

    def byte_count(self) -> dict[str, int]:
        """Return the sums of bytes that the history has, and what is kept."""
        sums = {
            name: sum(row[f"bytes_{name}"] or 0 for row in self.history())
            for name in ("read", "framed", "rejected", "repeated")
        }
        return sums | {"kept": sum(len(row["content"] or b"") for row in self.rows("partial"))}


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> Raw:
    """An empty raw depot and a ledger that does not exist yet."""
    return Raw(tmp_path, clock)


def dirty() -> bytes:
    """Return rows with bad ones among them."""
    rows = [*ROWS]
    for at, bad in zip((5, 20, 33, 50), BAD, strict=True):
        rows.insert(at, bad)
    return b"".join(rows)


def cut(data: bytes, size: int) -> list[tuple[str, int, bytes, bool]]:
    """Cut a source into chunks."""
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return [("gateway", number, part, number == len(parts)) for number, part in enumerate(parts, 1)]


@pytest.mark.slow_on_spark
def test_any_microbatches(world: Raw, engine: EngineFactory, tmp_path: Path, clock: ManualClock) -> None:
    """Chunks in any order and any versions, repeated, in microbatches of any size: the messages and rejections of the
    whole, and every byte in the books at each version of the ledger.
    """
    whole = Raw(tmp_path / "whole", clock)
    chunks = cut(dirty(), 111)
    whole.append(*chunks)
    whole.run(EngineFactory("embedded"))
    shape = random.Random(3)
    arrivals = [*chunks, chunks[3], chunks[9]]
    shape.shuffle(arrivals)
    while arrivals:
        count = shape.randrange(1, 6)
        world.append(*arrivals[:count])
        del arrivals[:count]
        if shape.random() < 0.6:
            world.run(engine, max_messages=3)
            books = world.byte_count()
            assert books["read"] == books["framed"] + books["rejected"] + books["repeated"] + books["kept"]
    world.run(engine)
    batches, rejected = world.outcomes()
    assert batches_of(batches) == batches_of(whole.outcomes()[0])
    assert sorted(row for row in rejected if row[1] != "format_repeated") == sorted(whole.outcomes()[1])
    assert [row[1] for row in rejected].count("format_repeated") == 2
    assert world.byte_count()["kept"] == 0
    assert len(dirty()) == world.byte_count()["framed"] + world.byte_count()["rejected"]
    assert len(batches_of(batches)) == 60


def batches_of(batches: list[Any]) -> list[Any]:
    """Return each message with the stream of its batch."""
    return sorted(repr((source, key, message)) for source, key, _, inside in batches for message in inside)


@pytest.mark.slow_on_spark
def test_rejected(world: Raw, engine: EngineFactory) -> None:
    """A bad record is rejected with its place, the reason and its bytes, and counts as read."""
    world.append(*cut(dirty(), 10_000))
    world.run(engine)
    rejected = {row["content"]: row for row in world.rows("rejected")}
    assert {content: row["reason"] for content, row in rejected.items()} == dict(
        zip(BAD, ("format_columns", "format_columns", "format_cast", "format_cast"), strict=True)
    ) | {BAD[1]: rejected[BAD[1]]["reason"]}
    assert rejected[BAD[3]]["detail"].startswith("chunk 1, offset ")
    assert "size" in rejected[BAD[3]]["detail"]
    history = world.history()
    assert [(row["messages_read"], row["rejected"], row["format"] is not None) for row in history] == [(64, 4, True)]


@pytest.mark.slow_on_spark
def test_crash(world: Raw, engine: EngineFactory) -> None:
    """A run that fails after its commit, or before it, leaves what a run that does not fail leaves."""
    world.append(*cut(dirty(), 300)[:4])
    for where in (Point.AFTER_PROCESS, Point.BEFORE_COMMIT, Point.AFTER_COMMIT):

        def fail(point: Point, at: Point = where) -> None:
            if point is at:
                raise OSError("the connection was lost")

        with pytest.raises(Exception, match="lost"):
            world.probed(engine, fail, max_retries=0, **SETTINGS).once()
    world.run(engine)
    world.append(*cut(dirty(), 300)[4:])
    world.run(engine)
    assert len(batches_of(world.outcomes()[0])) == 60
    assert len(world.outcomes()[1]) == 4


def test_short_read(world: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the feed gives fewer chunks than the log says were added nothing is written."""
    from windrow.source import conversion

    really = conversion.chunks_of
    monkeypatch.setattr(conversion, "chunks_of", lambda *arguments: really(*arguments).slice(1))
    world.append(*cut(dirty(), 300))
    with pytest.raises(RetriesExhaustedError, match="its commit added 7"):
        world.run(EngineFactory("embedded"), max_retries=0)
    assert world.history() == []


@pytest.mark.slow_on_executors
def test_no_format(world: Raw, engine: EngineFactory) -> None:
    """A raw depot without a format is an error that says what is missing, before anything is made."""
    with pytest.raises(SettingsError, match="raw"):
        world.run(engine, format={})
    assert not Path(world.ledger).exists()


def test_field_called_version(world: Raw) -> None:
    """A field may have any name but those of Delta's feed; one that is called version is no version of the depot."""
    world.append(("gateway", 1, b"7,d1,%s\n" % time_text(NOW).encode(), True))
    chosen = {
        "type": "csv",
        "has_header": False,
        "fields": {"version": "int64", "device": "string", "ts": "timestamp[us]"},
    }
    columns = {"source": "device", "key": "device", "type": "cast(version as string)", "event_time": "ts"}
    world.run(EngineFactory("embedded"), format=chosen, depot_columns=columns)
    ((_, _, _, inside),) = world.outcomes()[0]
    assert [message["type"] for message in inside] == ["7"]
    assert [(part["version"], part["messages"]) for part in world.history()[0]["versions"]] == [(1, 1)]

    with pytest.raises(SettingsError, match="Delta"):
        world.run(EngineFactory("embedded"), format={"type": "csv", "fields": {"_commit_version": "int64"}})


@pytest.mark.slow_on_spark
def test_max_messages(world: Raw, engine: EngineFactory) -> None:
    """A microbatch takes no more versions than have `max_messages` chunks together, as long as one has not more."""
    chunks = cut(dirty(), 200)
    for at in range(0, len(chunks), 2):
        world.append(*chunks[at : at + 2])
    world.run(engine, max_messages=4)
    read = [len(row["versions"]) for row in world.history() if row["kind"] == "data"]
    versions = -(-len(chunks) // 2)
    assert read == [2] * (versions // 2) + [1] * (versions % 2)


@pytest.mark.slow_on_spark
def test_max_read_bytes(world: Raw, engine: EngineFactory) -> None:
    """A microbatch takes no more versions than have `max_read_bytes` bytes together; a larger one is one by itself."""
    data = [random.Random(at).randbytes(size) for at, size in enumerate((3_000, 3_000, 20_000, 3_000, 3_000), 1)]
    for number, content in enumerate(data, 1):
        world.append(("gateway", number, content, number == len(data)))
    world.run(engine, format=CSV | {"max_read_bytes": 10_000})
    assert [row["depot_version"] for row in world.history() if row["kind"] == "data"] == [2, 3, 5]


@pytest.mark.slow_on_spark
def test_binary_payload_without_mapping(world: Raw, engine: EngineFactory) -> None:
    """Fields with the names of a message's columns are one without a mapping; a payload of bytes stays one."""
    fields = {"key": "string", "type": "string", "event_time": "timestamp[us]", "payload": "binary"}
    payload = b"\xff\x00\xfe"
    line = b"k,t,%s,%s\n" % (time_text(NOW).encode(), payload)
    world.append(("gateway", 1, line, True))
    world.run(engine, depot_columns={}, format={"type": "csv", "has_header": False, "fields": fields})
    [batch] = world.rows("open", "closed")
    assert [(message["type"], message["payload"]) for message in batch["messages"]] == [("t", payload)]
    assert world.rows("rejected") == []
    assert verify(world.depot, world.ledger).ok


@pytest.mark.parametrize(
    ("chosen", "chunks", "byte_count", "are_needed"),
    [
        ({}, 5, 2**28, False),
        ({}, 6, 0, True),
        ({}, 1, 2**28 + 1, True),
        ({"max_read_bytes": 100}, 1, 101, True),
        ({"type": "native", "fields": {"a": "int8"}}, 1, 2**30, False),
    ],
)
def test_choice_of_executors(chosen: dict[str, Any], chunks: int, byte_count: int, are_needed: bool) -> None:
    """Executors read what has more bytes or chunks than the driver may read at once."""
    format_ = format_of(FormatSettings(**(CSV | chosen)))
    conversion = Conversion(format_, None, format_.parser.schema, pa.string())
    assert conversion.needs_executors(chunks, byte_count, max_driver_messages=5) == are_needed


UNUSED = b"".join([*ROWS[:5], b"d1,%s,k,v,300\n" % time_text(NOW).encode(), *ROWS[5:9]])


@pytest.mark.slow_on_spark
def test_unused_fields(world: Raw, engine: EngineFactory) -> None:
    """A bad value in a field that no expression uses rejects nothing, unless `strict`; `verify` reads each microbatch
    as the run did.
    """
    for source, strict in (("a", False), ("b", True)):
        world.append((source, 1, UNUSED, True))
        world.run(engine, format=CSV | {"strict": strict})
    refused = [row for row in world.rows("rejected") if row["raw_source"]]
    assert [(row["reason"], row["raw_source"]) for row in refused] == [("format_cast", "b")]
    report = verify(world.depot, world.ledger)
    assert report.ok, report


@pytest.mark.slow_on_spark
def test_codec_cut_anywhere(world: Raw, engine: EngineFactory, tmp_path: Path, clock: ManualClock) -> None:
    """Frames that are cut into chunks anywhere give the records and rejects of their content; `verify` agrees."""
    plain = Raw(tmp_path / "plain", clock)
    plain.append(("gateway", 1, dirty(), True))
    plain.run(EngineFactory("embedded"))
    rows = dirty().splitlines(keepends=True)
    frames = [encode(b"".join(rows[at : at + 9]), "zstd") for at in range(0, len(rows), 9)]
    chunks = cut(b"".join(frames), 97)
    for at in range(0, len(chunks), 3):
        world.append(*reversed(chunks[at : at + 3]))
        world.run(engine, format=CSV | {"compression": "zstd"})
        books = world.byte_count()
        assert books["read"] == books["framed"] + books["rejected"] + books["repeated"] + books["kept"]
    assert len(batches_of(world.outcomes()[0])) == len(batches_of(plain.outcomes()[0])) == 60
    assert sorted(row[3] for row in world.outcomes()[1]) == sorted(row[3] for row in plain.outcomes()[1])
    report = verify(world.depot, world.ledger)
    assert report.ok, report


@pytest.mark.slow_on_spark
def test_partial_of_new_sources(world: Raw, engine: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many sources that wait, a microbatch reads only those with new chunks, whatever their names begin with."""
    names = ["a", "a-b", "a/b", "a/", "b%", "b0"]
    lines = [b"d%d,%s,k,v,1\n" % (number, time_text(NOW).encode()) for number in range(len(names))]
    world.append(*((name, 1, ROWS[0] + line[:9], False) for name, line in zip(names, lines, strict=True)))
    world.run(engine)
    read: list[set[str]] = []
    really = Live.partial

    def partial(live: Live, depot: str | None, sources: pa.Array | None = None) -> pa.Table:
        rows = really(live, depot, sources)
        read.append(set(rows["raw_source"].to_pylist()))
        return rows

    monkeypatch.setattr(Live, "partial", partial)
    for name, line in zip(names, lines, strict=True):
        world.append((name, 2, line[9:], True))
        world.run(engine)
    assert [sorted(piece) for piece in read if piece] == [[name] for name in names]
    assert sorted(key for key, *_ in ((row["key"],) for row in world.rows("open"))) == [f"d{at}" for at in range(6)]
    assert world.byte_count()["kept"] == 0
    report = verify(world.depot, world.ledger)
    assert report.ok, report

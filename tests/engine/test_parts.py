"""A depot version that is larger than memory: processed in parts by stream, and committed at once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.test_raw import COLUMNS, Raw, cut, dirty
from tests.engine.world import World
from tests.messages import SECOND, log, message, table
from windrow.errors import IncompatibleTableError, RetriesExhaustedError
from windrow.rows import spilled
from windrow.rows.spilled import BUCKETS, Room, SpilledRows, buckets_of
from windrow.source import embedded as source
from windrow.verify import verify

LEAST = {"max_memory_bytes": 1_000_000}


@pytest.fixture(autouse=True)
def few_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least memory has room for 100 messages, and for 12,500 bytes of chunks; there are ten buckets."""
    monkeypatch.setattr(source, "MESSAGE_BYTES", 10_000)
    monkeypatch.setattr(source, "CHUNK_BYTES", 80)
    monkeypatch.setattr(source, "RECORD_BYTES", 80)
    monkeypatch.setattr(spilled, "BUCKETS", 10)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parts each version that was read so had."""
    part_counts, spill = [], SpilledRows.of

    def counted(rows: Iterable[pa.Table], room: Room, file: IO[bytes]) -> SpilledRows:
        made = spill(rows, room, file)
        part_counts.append(len(made.parts))
        return made

    monkeypatch.setattr(SpilledRows, "of", counted)
    return part_counts


def of_many_keys(versions: int, seed: int = 1) -> list[list[dict[str, object]]]:
    """Return versions of a log whose messages have thirty keys, and some none."""
    return [
        [row | {"key": row["key"] and f"{row['key']}-{number % 30}"} for number, row in enumerate(rows)]
        for rows in log(versions=versions, size=250, seed=seed)
    ]


def test_one_commit(world: World, embedded: EngineFactory, parts: list[int]) -> None:
    """A version in parts gives what one call gives, in one commit; open batches of before are in one part each."""
    for rows in of_many_keys(versions=3):
        world.publish(rows)
        world.runner(embedded, **LEAST).once()
    assert len(parts) == 3
    assert min(parts) >= 3
    assert world.canonical() == world.expected()
    assert [(row["processed_on"], row["messages_read"]) for row in world.history()] == [("driver", 250)] * 3
    assert DeltaTable(world.ledger).version() == 3
    world.assert_balanced()


def test_windows_that_end(world: World, embedded: EngineFactory, parts: list[int]) -> None:
    """Windows of keys without new messages end as well, whatever part their bucket would be in."""
    world.publish([message(key=f"k{number}", source="s") for number in range(60)])
    world.runner(embedded).once()
    later = NOW + 60 * SECOND
    world.clock.set(later)
    few = [f"k{number}" for number in range(7)]
    rows = [
        message(key=key, source="s", event_time=later, received_at=later, type=f"t{n}")
        for n in range(20)
        for key in few
    ]
    world.publish(rows)
    world.runner(embedded, **LEAST).once()
    assert len(parts) == 1
    assert parts[0] > 1
    assert world.canonical() == world.expected()
    assert len(world.rows("closed")) == 60
    world.assert_balanced()


def test_dry_run_and_replay(world: World, embedded: EngineFactory, parts: list[int]) -> None:
    """A replay reads such a version in parts as well."""
    world.publish(*of_many_keys(versions=2))
    world.runner(embedded, **LEAST).once()
    assert world.replayed(**LEAST).equal
    assert len(parts) > 1


def test_small_versions_stay_whole(world: World, embedded: EngineFactory, parts: list[int]) -> None:
    """Versions that fit are read at once."""
    world.publish(*log(versions=2, size=50))
    world.runner(embedded, max_messages=20, **LEAST).once()
    assert parts == []


def test_one_key_too_large(world: World, embedded: EngineFactory) -> None:
    """Messages of one key that do not fit are refused with the setting's name, before anything is written."""
    world.publish(*log(versions=1))
    world.runner(embedded).once()
    before, version = set(Path(world.ledger).rglob("*.parquet")), world.version()
    world.publish([message(key="k", type=f"t{number}") for number in range(101)])
    with pytest.raises(IncompatibleTableError, match=r"101 messages of one key.* max_memory_bytes has room for 100"):
        world.runner(embedded, max_retries=0, **LEAST).once()
    assert (set(Path(world.ledger).rglob("*.parquet")), world.version()) == (before, version)
    world.runner(embedded).once()
    assert world.canonical() == world.expected()


class TestRawDepot:
    """A version of chunks, of which each part has some raw sources."""

    SOURCES = 25

    def versions(self) -> list[list[tuple[str | None, int, bytes, bool]]]:
        """Return two versions: bad records, a cut record, repeated and early chunks, and rows that are no chunks."""
        both: list[list[tuple[str | None, int, bytes, bool]]] = [[], []]
        for number in range(self.SOURCES):
            chunks = [(f"s{number}", at, part, last) for _, at, part, last in cut(dirty(), 150 + number)]
            both[0] += [*chunks[: 6 + number % 3], chunks[9], chunks[2], (f"s{number % 4}", 0, b"too early", False)]
            both[1] += [*chunks[6 + number % 3 :], (None, 1, b"of nobody %d" % number, False)]
        return both

    def test_as_a_whole(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory, parts: list[int]) -> None:
        """The same messages, rejections, partial records and byte counts as if all were in memory, in one commit."""
        whole, world = Raw(tmp_path / "whole", clock), Raw(tmp_path / "parts", clock)
        for chunks in self.versions():
            for raw, memory in ((whole, {}), (world, {"max_memory_bytes": 2_000_000})):
                raw.append(*chunks)
                raw.run(embedded, depot_columns=COLUMNS | {"key": "raw_source || kind"}, **memory)
            assert world.outcomes() == whole.outcomes()
            assert world.byte_count() == whole.byte_count()
            assert world.rows("partial") == whole.rows("partial")
        counted = ["messages_read", "accepted", "rejected", "opened", "closed", "bytes_framed"]
        ours, theirs = ([[row[name] for name in counted] for row in raw.history()] for raw in (world, whole))
        assert ours == theirs
        assert len(parts) == 4  # of the sources and of the keys, twice
        assert min(parts) >= 2
        assert DeltaTable(world.ledger).version() == DeltaTable(whole.ledger).version() == 2
        verified = verify(world.depot, world.ledger)
        assert verified.ok, verified

    def test_one_source_too_large(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """Chunks of one source that do not fit are refused with the setting's name, before anything is written."""
        world = Raw(tmp_path, clock)
        world.append(*[("s", number, dirty(), False) for number in range(1, 9)])
        with pytest.raises(
            IncompatibleTableError, match=r"bytes of one raw source.* max_memory_bytes has room for 12,500"
        ):
            world.run(embedded, max_retries=0, **LEAST)
        assert world.history() == []


def test_full_disk(world: World, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full temporary directory is an error that says what to set; nothing is written."""
    world.publish(*of_many_keys(versions=1))
    monkeypatch.setattr(source, "TemporaryFile", partial(Path.open, Path("/dev/full"), "r+b"))
    with pytest.raises(RetriesExhaustedError, match="has no room for a depot version that is read in parts"):
        world.runner(embedded, max_retries=0, **LEAST).once()
    assert world.history() == []


def test_every_row_is_in_one_part() -> None:
    """Every row is in one part, those of a key in the same one, and every bucket belongs to one part."""
    rows = table([message(key=f"k{number % 90}") for number in range(400)]).append_column(
        "version", pa.array([1] * 400)
    )
    with TemporaryFile() as file:
        parts = list(SpilledRows.of([rows.slice(0, 250), rows.slice(250)], Room.of_messages(60), file).tables())
    keys = [set(part["key"].to_pylist()) for part, _ in parts]
    assert sum(part.num_rows for part, _ in parts) == 400
    assert sum(map(len, keys)) == 90
    assert sorted(number for _, buckets in parts for number in buckets) == list(range(10))
    assert all(set(buckets_of(part["key"]).tolist()) <= buckets for part, buckets in parts)


def test_buckets() -> None:
    """A key's bucket is the same in each process; rows without a key are together."""
    assert buckets_of(pa.chunked_array([["a", None, "b", "a"], [None]])).tolist() == [7, 0, 1, 7, 0]
    assert BUCKETS == 256

"""Buffers become chunks of a raw depot: each once, in order, and none after a missing one."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import windrow
from tests.clocks import NOW
from tests.producer.conftest import Faults, Gate, empty, messages
from windrow import Producer, RawProducer, Settings
from windrow.delta.log import DeltaRsLog, count_added_rows
from windrow.errors import (
    DeliveryTimeoutError,
    IncompatibleTableError,
    InputFileError,
    InvalidMessageError,
    ProducerClosedError,
    ProducerFencedError,
)
from windrow.ingest.raw_files import ingest
from windrow.model.chunks import is_raw
from windrow.reading.tables import open_ledger
from windrow.verify import verify

ROOT = Path(__file__).parents[2]


def contents(depot: str) -> dict[str, list[tuple[int, bytes, bool]]]:
    """Return the chunks of each source in the order of their numbers."""
    chunks_by_source: dict[str, list[tuple[int, bytes, bool]]] = {}
    for row in messages(depot).to_pylist():
        chunks_by_source.setdefault(row["raw_source"], []).append((row["sequence"], row["bytes"], row["last"]))
    return chunks_by_source


class TestSend:
    def test_arrives(self, depot: str) -> None:
        """Each buffer is a chunk, numbered from 1 and acknowledged with its number; the last one ends the source."""
        data = [random.Random(at).randbytes(at * 100) for at in range(1, 20)]
        before = time.time_ns() // 1_000
        with RawProducer(depot, "socket") as producer:
            kinds = [bytes, bytearray, memoryview]
            sent = [producer.send(kinds[at % 3](piece)) for at, piece in enumerate(data)]
            sent.append(producer.finish())
            assert [message.result(60).sequence for message in sent] == list(range(1, 21))
            assert producer.ended
        expected = [(number, piece, False) for number, piece in enumerate(data, 1)] + [(20, b"", True)]
        assert contents(depot) == {"socket": expected}
        table = messages(depot)
        assert is_raw(table.schema)
        assert before <= pc.min(table["received_at"]).value <= time.time_ns() // 1_000

    def test_batches(self, depot: str) -> None:
        """Buffers that are sent together are committed together, and the log says how many bytes a version has."""
        with RawProducer(depot, "socket", linger="60s", max_commit_rows=10) as producer:
            sent = [producer.send(b"x" * number) for number in range(1, 26)]
            assert sent[19].result(60).version == 2
        assert [message.result(0).version for message in sent] == [1] * 10 + [2] * 10 + [3] * 5
        assert DeltaRsLog(depot).bytes_added(0, 3) == {1: 55, 2: 155, 3: 115}
        assert count_added_rows(DeltaRsLog(depot).commits(), 0, 3) == {1: 10, 2: 10, 3: 5}

    def test_async(self, depot: str) -> None:
        """In an event loop many wait for their acknowledgements at the same time."""

        async def main() -> list[int]:
            with RawProducer(depot, "socket") as producer:
                acks = await asyncio.gather(*(producer.send_async(b"%d" % at) for at in range(50)))
                await producer.send_async(b"end", last=True)
                return [ack.sequence for ack in acks]

        assert asyncio.run(main()) == list(range(1, 51))
        assert contents(depot)["socket"][-1] == (51, b"end", True)

    def test_several_sources(self, depot: str) -> None:
        """Sources have numbers of their own, and share the committer of their depot."""
        with RawProducer(depot, "a") as producer_a, RawProducer(depot, "b") as producer_b:
            for piece in (b"1", b"2"):
                producer_a.send(piece)
                producer_b.send(piece * 2)
        assert contents(depot) == {
            "a": [(1, b"1", False), (2, b"2", False)],
            "b": [(1, b"11", False), (2, b"22", False)],
        }

    def test_refused(self, depot: str) -> None:
        """A buffer that is not bytes or too large, or a source without a name, is refused and reserves no buffer
        space.
        """
        for name in ("", None, "\ud800"):
            with pytest.raises(InvalidMessageError, match="not a valid name"):
                RawProducer(depot, name)  # type: ignore[arg-type]
        with RawProducer(depot, "socket", max_message_bytes=10) as producer:
            for wrong, error_message in (
                ("text", "not a bytes-like"),
                (b"x" * 11, "larger than max_message_bytes, 10"),
                (None, "not a bytes-like"),
            ):
                with pytest.raises(InvalidMessageError, match=error_message):
                    producer.send(wrong)  # type: ignore[arg-type]
            assert producer.send(b"x" * 10).result(60).sequence == 1
            assert empty(producer)

    def test_other_depots(self, depot: str, tmp_path: Path) -> None:
        """A depot of messages refuses chunks, and a raw depot refuses messages, also while it is open."""
        other = str(tmp_path / "other")
        with RawProducer(depot, "socket") as producer:
            producer.send(b"x").result(60)
            with pytest.raises(IncompatibleTableError):
                Producer(depot, "p")
        with pytest.raises(IncompatibleTableError):
            Producer(depot, "p")
        with Producer(other, "p") as messages_:
            messages_.send(key="k", type="t").result(60)
            with pytest.raises(IncompatibleTableError):
                RawProducer(other, "socket")
        with pytest.raises(IncompatibleTableError):
            RawProducer(other, "socket")


class TestGoesOn:
    def test_after_a_restart(self, depot: str) -> None:
        """Numbers continue after those in the depot."""
        for at in range(3):
            with RawProducer(depot, "socket") as producer:
                assert producer.last_sequence() == 2 * at
                producer.send(b"%d" % at)
                producer.send(b".")
        assert [number for number, _, _ in contents(depot)["socket"]] == [1, 2, 3, 4, 5, 6]

    def test_ended(self, depot: str) -> None:
        """Nothing is accepted after the last chunk, neither now nor after a restart."""
        with RawProducer(depot, "socket") as producer:
            producer.send(b"x", last=True)
            with pytest.raises(ProducerClosedError, match="has ended"):
                producer.send(b"y")
        with RawProducer(depot, "socket") as again:
            assert again.ended
            with pytest.raises(ProducerClosedError, match="has ended"):
                again.finish()
        assert contents(depot) == {"socket": [(1, b"x", True)]}

    def test_lost_reply(self, depot: str, faults: Faults) -> None:
        """A commit whose reply was lost counts, and its chunks are there once."""

        def lost(attempt: int) -> None:
            if attempt == 1:
                raise OSError("the connection is gone")

        faults.after = lost
        with RawProducer(depot, "socket") as producer:
            assert [producer.send(piece).result(60).sequence for piece in (b"a", b"b")] == [1, 2]
        assert contents(depot) == {"socket": [(1, b"a", False), (2, b"b", False)]}

    def test_again(self, depot: str, faults: Faults) -> None:
        """A commit that fails is retried before later ones."""

        def full(attempt: int) -> None:
            if attempt <= 2:
                raise OSError("no space left on device")

        faults.before = full
        with RawProducer(depot, "socket", max_commit_rows=1) as producer:
            sent = [producer.send(piece) for piece in (b"a", b"b", b"c")]
        assert [message.result(0).sequence for message in sent] == [1, 2, 3]
        assert [piece for _, piece, _ in contents(depot)["socket"]] == [b"a", b"b", b"c"]

    def test_nothing_behind_what_is_missing(self, depot: str, faults: Faults) -> None:
        """When a chunk fails for good, later ones fail too and none is accepted; a newly opened producer continues."""

        def refused(attempt: int) -> None:
            if attempt == 2:
                raise IncompatibleTableError("no", "no")

        faults.before = refused
        with RawProducer(depot, "socket", max_commit_rows=1) as producer:
            sent = [producer.send(b"%d" % at) for at in range(5)]
            ends = [message.exception(60) for message in sent]
            assert ends[0] is None
            assert [type(end) for end in ends[1:]] == [IncompatibleTableError, *[ProducerClosedError] * 3]
            with pytest.raises(ProducerClosedError, match="none can follow it"):
                producer.send(b"more")
            assert empty(producer)
        with RawProducer(depot, "socket") as again:
            assert again.last_sequence() == 1
            again.send(b"1")
        assert contents(depot) == {"socket": [(1, b"0", False), (2, b"1", False)]}

    def test_too_late(self, depot: str, faults: Faults, gate: Gate) -> None:
        """When a commit hangs beyond the deadline, nothing is accepted after it. A chunk that is sent again under its
        number is refused if that commit succeeded after all.
        """
        faults.before = lambda attempt: gate(attempt) if attempt == 1 else None
        producer = RawProducer(depot, "socket", max_commit_rows=1, delivery_timeout="500ms")
        first = producer.send(b"a")
        gate.await_commit()
        second = producer.send(b"b")
        assert isinstance(first.exception(60), DeliveryTimeoutError)
        assert second.exception(60) is not None
        with pytest.raises(ProducerClosedError):
            producer.send(b"c")
        producer.close()
        again = RawProducer(depot, "socket", max_commit_rows=1)
        repeated = again.send(b"a", sequence=again.last_sequence() + 1)
        gate.open()
        assert isinstance(repeated.exception(60), InvalidMessageError)
        again.close()
        with RawProducer(depot, "socket") as last:
            last.send(b"b", sequence=last.last_sequence() + 1).result(60)
        assert contents(depot) == {"socket": [(1, b"a", False), (2, b"b", False)]}


class TestFence:
    def test_second_process(self, depot: str) -> None:
        """If two processes send one source, the one that commits later gets an error and writes nothing."""
        with RawProducer(depot, "socket") as producer:
            producer.send(b"1").result(60)
            other = "import sys; from windrow import RawProducer\n"
            other += "with RawProducer(sys.argv[1], 'socket') as one: one.send(b'2').result(60)"
            subprocess.run([sys.executable, "-c", other, depot], check=True, timeout=120, cwd=ROOT)
            assert isinstance(producer.send(b"3").exception(60), ProducerFencedError)
        assert [piece for _, piece, _ in contents(depot)["socket"]] == [b"1", b"2"]

    @pytest.mark.ci
    def test_killed(self, depot: str) -> None:
        """A process that is killed while it sends leaves no gap; the next one continues, and each chunk is in the depot
        once.
        """
        other = (
            "import sys; from windrow import RawProducer\n"
            "producer = RawProducer(sys.argv[1], 'socket', max_commit_rows=3, linger='5ms', max_buffer_bytes=4_000, "
            "max_message_bytes=1000)\n"
            "for number in range(producer.last_sequence() + 1, 100_000):\n"
            "    future = producer.send(b'%d\\n' % number)\n"
            "    if number % 40 == 0: print(future.result().sequence, flush=True)\n"
        )
        for _ in range(3):
            process = subprocess.Popen(
                [sys.executable, "-c", other, depot], stdout=subprocess.PIPE, cwd=ROOT, text=True
            )
            acknowledged = int(process.stdout.readline())
            process.kill()
            process.communicate(timeout=60)
            with RawProducer(depot, "socket") as producer:
                assert producer.last_sequence() >= acknowledged
        with RawProducer(depot, "socket") as producer:
            count = producer.last_sequence()
        assert contents(depot)["socket"] == [(number, b"%d\n" % number, False) for number in range(1, count + 1)]

    def test_beside_a_file(self, depot: str, tmp_path: Path) -> None:
        """A file and a producer of the same source never use a number twice, whichever comes first."""
        file = tmp_path / "file"
        file.write_bytes(b"content")
        list(ingest(depot, [str(file)], lambda: NOW, raw_source="file"))
        with RawProducer(depot, "file") as producer, pytest.raises(ProducerClosedError, match="has ended"):
            producer.send(b"more")
        with RawProducer(depot, "socket") as producer:
            producer.send(b"x").result(60)
        file.write_bytes(b"other content")
        with pytest.raises(InputFileError, match="a producer has sent chunks of raw source socket up to number 1"):
            list(ingest(depot, [str(file)], lambda: NOW, raw_source="socket"))
        assert contents(depot) == {"file": [(1, b"content", True)], "socket": [(1, b"x", False)]}

    def test_while_a_file_is_read(self, depot: str, tmp_path: Path) -> None:
        """A producer stops when a file of its source is ingested meanwhile."""
        file = tmp_path / "file"
        file.write_bytes(b"content")
        with RawProducer(depot, "file") as producer:
            list(ingest(depot, [str(file)], lambda: NOW, raw_source="file"))
            assert isinstance(producer.send(b"more").exception(60), ProducerFencedError)
        assert contents(depot) == {"file": [(1, b"content", True)]}
        assert DeltaTable(depot).version() == 1


def test_to_batches(depot: str, tmp_path: Path) -> None:
    """Records survive being cut anywhere, sent by several producers in turn, and batched in between."""
    lines = [f"2026-01-01T00:00:{at // 2:02}Z,pump-{at % 3},{at}\n".encode() for at in range(100)]
    data, shape, at = b"".join(lines), random.Random(7), 0
    settings = Settings(
        depot=depot,
        ledger=str(tmp_path / "ledger"),
        engine="embedded",
        idle_timeout="never",
        depot_columns={"key": "k", "type": "'t'", "event_time": "ts", "received_at": "ts", "payload": "v"},
        format={"type": "csv", "has_header": False, "fields": {"ts": "timestamp[us]", "k": "string", "v": "string"}},
    )
    while at < len(data):
        with RawProducer(depot, "line", max_commit_rows=3) as producer:
            for _ in range(9):
                size = shape.randint(0, 60)
                producer.send(data[at : at + size], last=0 < len(data) - at <= size)
                at += size
                if at >= len(data):
                    break
        windrow.run(settings)
    book = open_ledger(settings.ledger).rows(("open", "closed", "rejected"), "state, messages").to_pylist()
    payloads = [message["payload"] for row in book if row["state"] in {"open", "closed"} for message in row["messages"]]
    assert sorted(payloads, key=int) == [str(number) for number in range(100)]
    assert not [row for row in book if row["state"] == "rejected"]
    assert verify(depot, settings.ledger).ok

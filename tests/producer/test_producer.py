"""A producer without faults."""

import asyncio
import gc
import threading
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.producer.conftest import empty, messages
from windrow.errors import (
    BufferFullError,
    IncompatibleTableError,
    InvalidMessageError,
    MessagesError,
    ProducerClosedError,
    ProducerInUseError,
    SettingsError,
)
from windrow.producer import Ack, Buffer, Position, Producer, ProducerState, queue
from windrow.producer.delivery import Batch

NEVER = "1h"
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)


class TestSend:
    def test_acknowledged(self, depot):
        """A message is acknowledged with its depot version and its number, and is stored as it was sent."""
        with Producer(depot, "gateway-7") as producer:
            future = producer.send(key="pump-1", type="temperature", event_time=MOMENT, payload=b"21.5")
            assert future.result(60) == Ack(1, 1)
        (row,) = messages(depot).to_pylist()
        assert row.pop("received_at") > MOMENT
        assert row == {
            "source": "gateway-7",
            "key": "pump-1",
            "type": "temperature",
            "event_time": MOMENT,
            "sequence": 1,
            "payload": "21.5",
        }

    def test_order_and_numbers(self, depot):
        """Messages of many commits have numbers without a gap, in the order of sending, also after a restart."""
        for _ in range(2):
            with Producer(depot, "p", max_commit_rows=7) as producer:
                sent = [producer.send(key="k", type="t", payload=str(number)) for number in range(50)]
            numbers = [future.result(0).sequence for future in sent]
            assert numbers == list(range(numbers[0], numbers[0] + 50))
        rows = messages(depot)
        assert rows["sequence"].to_pylist() == list(range(1, 101))
        assert rows["payload"].to_pylist() == [str(number) for number in range(50)] * 2

    def test_empty_body(self, depot):
        """A message without a payload, or an empty one, is delivered like any other."""
        with Producer(depot, "p") as producer:
            sent = [producer.send(key="k", type="t", payload=payload) for payload in (b"", "", None)]
        assert [future.result(0).sequence for future in sent] == [1, 2, 3]
        assert messages(depot)["payload"].to_pylist() == ["", "", None]

    def test_invalid(self, depot):
        """`send_invalid` stores an invalid message of any size in its turn, with NULL for missing values; it refuses a
        valid message, and a payload that is not text.
        """
        with Producer(depot, "p", max_message_bytes=200, max_buffer_bytes=300) as producer:
            sent = [
                producer.send(key="k", type="t", event_time=MOMENT, payload="1"),
                producer.send_invalid(key="a/b", payload="x" * 1_000),
                producer.send_invalid(source="s", key="k", type="t", payload=None),
                producer.send(key="k", type="t", event_time=MOMENT, payload="2"),
            ]
            assert [future.result(60).sequence for future in sent] == [1, 2, 3, 4]
            assert empty(producer)
            with pytest.raises(InvalidMessageError, match="is valid"):
                producer.send_invalid(key="k", type="t", event_time=MOMENT, payload="1")
            with pytest.raises(InvalidMessageError, match="not text"):
                producer.send_invalid(key="k", payload=b"\xff")
        rows = messages(depot)
        assert rows["payload"].to_pylist() == ["1", "x" * 1_000, None, "2"]
        assert rows["source"].to_pylist() == ["p", "p", "s", "p"]
        assert rows["type"].to_pylist() == ["t", None, "t", "t"]
        assert rows["event_time"].to_pylist() == [MOMENT, None, None, MOMENT]

    def test_bytes(self, depot):
        """A depot with binary payloads takes bytes, and text as UTF-8."""
        with Producer(depot, "p", payload="binary") as producer:
            producer.send(key="k", type="t", payload=b"\xff\x00")
            producer.send(key="k", type="t", payload="ä")
        assert messages(depot)["payload"].to_pylist() == [b"\xff\x00", "ä".encode()]

    def test_numbers(self, depot):
        """A number is kept as its text, with all of its digits, in a depot of text and in one of bytes."""
        numbers = [20, 21.5, 1e22, Decimal("20.50"), Decimal("1E+400"), -(2**70)]
        for place, kind in ((depot, "string"), (depot + "-bytes", "binary")):
            with Producer(place, "p", payload=kind) as producer:
                for number in numbers:
                    producer.send(key="k", type="t", payload=number)
            expected = ["20", "21.5", "1e+22", "20.50", "1E+400", str(-(2**70))]
            rows = messages(place)["payload"].to_pylist()
            assert rows == (expected if kind == "string" else [text.encode() for text in expected])

    @pytest.mark.parametrize(
        "wrong",
        [
            {"key": None},
            {"type": 7},
            {"source": b"s"},
            {"key": "\ud800"},
            {"payload": float("nan")},
            {"payload": True},
            {"payload": b"\xff"},
            {"event_time": datetime(2026, 1, 31)},  # noqa: DTZ001 - that is what is wrong with it
            {"event_time": 1.5},
            {"event_time": 2**63},
            {"received_at": "now"},
            {"sequence": True},
            {"payload": "x" * 1_048_577},
        ],
        ids=lambda wrong: next(iter(wrong)),
    )
    def test_refused(self, depot, wrong):
        """An invalid message is refused by `send`, and harms no other one."""
        with Producer(depot, "p") as producer:
            good = producer.send(key="k", type="t")
            with pytest.raises(InvalidMessageError):
                producer.send(**({"key": "k", "type": "t"} | wrong))
            assert good.result(60).sequence == 1
            assert empty(producer)
        assert messages(depot).num_rows == 1

    def test_times(self, depot):
        """Times may be datetimes or microseconds; a given sequence is kept."""
        with Producer(depot, "p") as producer:
            producer.send(key="k", type="t", event_time=MOMENT, received_at=1_000_000, sequence=-5)
        (row,) = messages(depot).to_pylist()
        assert (row["event_time"], row["received_at"].timestamp(), row["sequence"]) == (MOMENT, 1, -5)

    def test_not_cancelled(self, depot):
        """Cancelling a future does not take its message back."""
        with Producer(depot, "p", linger=NEVER) as producer:
            future = producer.send(key="k", type="t")
            assert not future.cancel()
        assert future.result(0) == Ack(1, 1)


class TestHolding:
    def test_together(self, depot):
        """Messages that nobody waits for are committed together."""
        with Producer(depot, "p", linger=NEVER) as producer:
            sent = [producer.send(key="k", type="t") for _ in range(100)]
        assert {future.result(0).version for future in sent} == {1}

    @pytest.mark.parametrize("limit", [{"max_commit_rows": 10}, {}], ids=["rows", "bytes"])
    def test_enough(self, depot, monkeypatch, limit):
        """A full batch is committed before `linger` is over."""
        monkeypatch.setattr(queue, "BATCH_BYTES", 1_000)
        with Producer(depot, "p", linger=NEVER, **limit) as producer:
            first = producer.send(key="k", type="t", payload="x" * 50)
            ended = threading.Event()
            first.add_done_callback(lambda _: ended.set())
            for _ in range(9):
                producer.send(key="k", type="t", payload="x" * 50)
            assert ended.wait(60)

    def test_time(self, depot):
        """A message that nobody waits for is committed after `linger`."""
        with Producer(depot, "p", linger="50ms") as producer:
            ended = threading.Event()
            producer.send(key="k", type="t").add_done_callback(lambda _: ended.set())
            assert ended.wait(60)

    def test_all_wait(self, depot):
        """When every sender waits for its message, they are committed together without waiting for `linger`."""
        with Producer(depot, "p", linger=NEVER) as producer:

            def call():
                for _ in range(5):
                    producer.send(key="k", type="t").result(60)

            threads = [threading.Thread(target=call) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert producer.metrics().record_send_total == 40
        assert DeltaTable(depot).version() < 40

    def test_flush(self, depot):
        """After `flush` all messages sent before are in the depot."""
        with Producer(depot, "p", linger=NEVER) as producer:
            sent = [producer.send(key="k", type="t") for _ in range(3)]
            assert producer.flush(60)
            assert all(future.done() for future in sent)


class TestMany:
    def test_between(self, depot):
        """A table is one commit, after everything sent before it and before everything sent after it."""
        with Producer(depot, "p", linger=NEVER) as producer:
            before = producer.send(key="k", type="t", payload="before")
            table = producer.send_many(pa.table({"key": ["k", "k"], "type": ["t", "t"], "payload": ["1", "2"]}))
            after = producer.send(key="k", type="t", payload="after")
        assert [future.result(0) for future in (before, table, after)] == [Ack(1, 1), Ack(2, 3), Ack(3, 4)]
        assert messages(depot)["payload"].to_pylist() == ["before", "1", "2", "after"]

    def test_larger_than_the_buffer(self, depot):
        """A table that is larger than the buffer is sent once nothing else is held."""
        table = pa.table({"key": ["k"] * 1_000, "type": ["t"] * 1_000})
        with Producer(depot, "p", max_buffer_bytes=2_000, max_message_bytes=500) as producer:
            sent = [producer.send_many(table) for _ in range(3)]
            assert [future.result(60).sequence for future in sent] == [1_000, 2_000, 3_000]
            assert empty(producer)

    def test_no_message(self, depot):
        """A row without key or type goes into the depot, and the batcher rejects it."""
        table = pa.table({"key": pa.array([None, "k"], pa.string()), "type": ["t", None], "payload": ["1", "2"]})
        with Producer(depot, "p") as producer:
            assert producer.send_many(table).result(60).sequence == 2
        assert messages(depot)["key"].to_pylist() == [None, "k"]

    def test_mark(self, depot):
        """Mark and fingerprint are recorded with the commit of their table, stay until the next, and survive a
        restart.
        """
        table = pa.table({"key": ["k"], "type": ["t"]})
        with Producer(depot, "p") as producer, Producer(depot, "mark:p") as other:
            assert producer.position() == Position(0, None)
            producer.send_many(table, mark=2**63 - 1).result(60)
            producer.send(key="k", type="t").result(60)
            assert producer.position() == Position(2, 2**63 - 1)
            assert other.position() == Position(0, None)
            with pytest.raises(InvalidMessageError):
                producer.send_many(table, mark=2**63)
            with pytest.raises(InvalidMessageError):
                producer.send_many(table, fingerprint=-(2**63) - 1)
        with Producer(depot, "p") as producer:
            producer.send_many(table, mark=-7, fingerprint=8).result(60)
            assert producer.position() == Position(3, -7, 8)
            producer.send_many(table, mark=9).result(60)
            assert producer.position() == Position(4, 9, 8)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"key": ["k"]},
            {"key": ["k"], "type": ["t"], "colour": ["red"]},
            {"key": ["k"], "type": ["t"], "event_time": [1.5]},
            {"key": []},
        ],
        ids=["missing", "unknown", "type", "none"],
    )
    def test_refused(self, depot, wrong):
        """A table that does not hold messages is refused, and reserves no buffer space."""
        with Producer(depot, "p") as producer:
            with pytest.raises(MessagesError):
                producer.send_many(pa.table(wrong))
            assert empty(producer)


class TestSharing:
    def test_buffer(self, depot, faults, gate):
        """Producers of several ids that share a buffer share its bound: a full one refuses the message of any id; once
        its messages are committed all of it is free.
        """
        faults.before = gate
        shared = Buffer(400)
        chosen = {"buffer": shared, "max_message_bytes": 100, "block_timeout": "0s", "linger": "0s"}
        with Producer(depot, "a", **chosen) as producer_a, Producer(depot, "b", **chosen) as producer_b:
            sent = [producer.send(key="k", type="t", payload="x" * 30) for producer in (producer_a, producer_b) * 2]
            with pytest.raises(BufferFullError):
                producer_a.send(key="k", type="t", payload="x" * 30)
            assert producer_a.metrics().buffer_available_bytes == producer_b.metrics().buffer_available_bytes < 100
            gate.open()
            assert [future.result(60).sequence for future in sent] == [1, 1, 2, 2]
            assert shared.available_bytes == 400

    def test_waiting(self, depot):
        """A sender that waits for room in a shared buffer makes the messages of all its ids be committed."""
        shared = Buffer(200)
        chosen = {"buffer": shared, "max_message_bytes": 200, "linger": NEVER}
        with Producer(depot, "a", **chosen) as producer_a, Producer(depot, "b", **chosen) as producer_b:
            first = producer_a.send(key="k", type="t", payload="x" * 100)
            second = producer_b.send(key="k", type="t", payload="x" * 100)
            assert first.result(60).version == 1
            assert second.result(60).version == 2

    def test_other_depot(self, depot, tmp_path):
        """A buffer belongs to one depot, as long as producers use it, and an id is open with one buffer only."""
        shared = Buffer(2_000_000)
        with Producer(depot, "p", buffer=shared):
            with pytest.raises(ProducerInUseError, match="another depot"):
                Producer(str(tmp_path / "other"), "p", buffer=shared)
            with pytest.raises(ProducerInUseError, match="another buffer"):
                Producer(depot, "p", buffer=Buffer(2_000_000))
        with Producer(str(tmp_path / "other"), "p", buffer=shared) as producer:
            producer.send(key="k", type="t").result(60)
        with pytest.raises(ValueError, match="no room"):
            Buffer(0)

    def test_batch_by(self, depot):
        """With `batch_by`, a commit has the messages of one value of that column, in the order of sending."""
        keys = "aabbba"
        with Producer(depot, "p", batch_by="key", linger=NEVER) as producer:
            sent = [producer.send(key=key, type="t") for key in keys]
            producer.flush(60)
            assert [future.result(0).version for future in sent] == [1, 1, 2, 2, 2, 3]
        assert messages(depot)["key"].to_pylist() == list(keys)


class TestFairness:
    def test_two_ids(self, depot):
        """A busy producer does not keep other producers of the depot waiting."""
        acks = []

        def go_on(future):
            acks.append(future.result())
            if len(acks) < 50:
                busy.send(key="k", type="t").add_done_callback(go_on)

        with Producer(depot, "busy", max_commit_rows=1) as busy, Producer(depot, "other") as other:
            busy.send(key="k", type="t").add_done_callback(go_on)
            mine = other.send(key="k", type="t").result(60)
            assert other.flush(60)
            assert mine.version < 10

    def test_memory(self, depot):
        """Futures do not keep messages in memory, except those of the committer's last batch."""
        with Producer(depot, "p", max_commit_rows=5) as producer:
            sent = [producer.send(key="k", type="t") for _ in range(20)]
            producer.flush(60)
            gc.collect()
            assert len([live_object for live_object in gc.get_objects() if type(live_object) is Batch]) <= 1
            assert all(future.done() for future in sent)


class TestAsync:
    def test_gathered(self, depot):
        """Coroutines that send at the same time share commits, and each has its own number."""

        async def gather():
            return await asyncio.gather(*(producer.send_async(key="k", type="t") for _ in range(200)))

        with Producer(depot, "p", linger=NEVER) as producer:
            acks = asyncio.run(gather())
        assert sorted(ack.sequence for ack in acks) == list(range(1, 201))
        assert len({ack.version for ack in acks}) < 20

    def test_full(self, depot):
        """The event loop runs while coroutines wait for buffer space."""

        async def gather():
            return await asyncio.gather(*(producer.send_async(key="k", type="t") for _ in range(50)))

        with Producer(depot, "p", max_buffer_bytes=200, max_message_bytes=100) as producer:
            assert len(asyncio.run(gather())) == 50
            assert empty(producer)


class TestLife:
    def test_shared(self, depot):
        """Producers with the same id and settings share their numbers; closing the first one does not stop the
        others.
        """
        first, second = Producer(depot, "p"), Producer(depot, "p")
        first.send(key="k", type="t")
        first.close()
        assert second.send(key="k", type="t").result(60).sequence == 2
        with pytest.raises(ProducerClosedError):
            first.send(key="k", type="t")
        second.close()
        assert (first.state, second.state) == (ProducerState.CLOSED, ProducerState.CLOSED)

    def test_other_settings(self, depot):
        """In a process, an id cannot be open with two different settings, because the producers would fence each
        other.
        """
        with Producer(depot, "p"):
            with pytest.raises(ProducerInUseError):
                Producer(depot, "p", linger="1ms")
            with Producer(depot, "q", linger="1ms") as other:
                assert other.send(key="k", type="t").result(60).sequence == 1

    def test_last_sequence(self, depot):
        """The number of the last message can be read before the first message, and after a restart."""
        with Producer(depot, "p") as producer:
            assert producer.last_sequence() == 0
            producer.send(key="k", type="t").result(60)
            assert producer.last_sequence() == 1
        with Producer(depot, "p") as producer:
            assert producer.last_sequence() == 1

    def test_threads_end(self, depot):
        """When the last producer of a depot is closed its threads end."""
        before = set(threading.enumerate())
        Producer(depot, "p").close()
        for thread in set(threading.enumerate()) - before:
            thread.join(60)
        assert set(threading.enumerate()) <= before

    @pytest.mark.parametrize("wrong", [{"hold": 1}, {"linger": "-1s"}, {"block_timeout": "soon"}])
    def test_settings(self, depot, wrong):
        """An unknown or invalid setting is an error."""
        with pytest.raises(SettingsError):
            Producer(depot, "p", **wrong)

    def test_other_depot(self, tmp_path):
        """A table that does not hold messages is refused."""
        from deltalake import write_deltalake

        write_deltalake(str(tmp_path / "t"), pa.table({"key": ["k"]}))
        with pytest.raises(IncompatibleTableError):
            Producer(str(tmp_path / "t"), "p")

"""After a fault no future stays open, no message is lost or doubled, and no buffer space stays reserved."""

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import wait
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake import write_deltalake as really_write
from deltalake.schema import Field, PrimitiveType
from deltalake.transaction import Transaction
from filelock import FileLock

from tests.producer.conftest import empty, messages
from windrow.delta.creation import create_depot
from windrow.delta.table import open_table
from windrow.errors import (
    BufferFullError,
    DeliveryTimeoutError,
    IncompatibleTableError,
    InternalError,
    ProducerClosedError,
    ProducerFencedError,
    ProducerInUseError,
    TableMissingError,
    TableUnreadableError,
)
from windrow.model.messages import schema
from windrow.producer import Ack, Producer, ProducerState, writer
from windrow.producer.delivery import Batch

NEVER = "1h"


def fail_on(*attempts):
    def fail(attempt):
        if attempt in attempts:
            raise OSError("no space left on device")

    return fail


class TestCommit:
    def test_again(self, depot, faults):
        """A commit that failed before it was written is retried, and its messages are in the depot once, in order."""
        faults.before = fail_on(1, 2)
        with Producer(depot, "p", max_commit_rows=5) as producer:
            sent = [producer.send(key="k", type="t", payload=str(number)) for number in range(20)]
            assert [future.result(60).sequence for future in sent] == list(range(1, 21))
            assert producer.metrics().record_retry_total == 2
            assert empty(producer)
        assert messages(depot)["payload"].to_pylist() == [str(number) for number in range(20)]

    def test_end_of_a_thread(self, depot, faults, tmp_path):
        """What would end the committing thread, such as a panic of delta-rs, fails its messages at once, and only
        them.
        """
        panicking = tmp_path / "a^b"
        faults.before = lambda attempt: attempt == 1 and really_write(panicking, pa.table({"x": [1]}))
        with Producer(depot, "p", max_commit_rows=1) as producer:
            with pytest.raises(InternalError, match="delta-rs failed at the depot"):
                producer.send(key="k", type="t").result(60)
            assert producer.send(key="k", type="t").result(60).sequence == 1
            faults.before = lambda attempt: sys.exit("no reason")
            with pytest.raises(InternalError, match="SystemExit: no reason"):
                producer.send(key="k", type="t").result(60)
            faults.before = lambda attempt: None
            assert producer.send(key="k", type="t").result(60).sequence == 2
            assert empty(producer)
        assert messages(depot)["sequence"].to_pylist() == [1, 2]

    def test_lost_reply(self, depot, faults):
        """A commit that is in the depot although it failed is recognised, and not repeated."""
        faults.after = fail_on(1, 2)
        with Producer(depot, "p", max_commit_rows=5) as producer:
            sent = [producer.send(key="k", type="t") for _ in range(20)]
            assert [future.result(60).sequence for future in sent] == list(range(1, 21))
        assert messages(depot)["sequence"].to_pylist() == list(range(1, 21))
        assert faults.attempts == 4

    def test_not_known(self, depot, faults, monkeypatch):
        """When a commit fails and the depot cannot be read until the deadline, the outcome of its messages is reported
        as unknown. Later messages get the numbers after those in the depot.
        """

        def unreadable(location, role):
            raise TableUnreadableError("the depot cannot be read")

        def fail(attempt):
            if attempt == 2:
                monkeypatch.setattr(writer, "open_table", unreadable)
                raise OSError("connection lost")

        for where in ("before", "after"):
            place = f"{depot}-{where}"
            faults.attempts, faults.before, faults.after = 0, fail_on(), fail_on()
            setattr(faults, where, fail)
            with Producer(place, "p", delivery_timeout="3s") as producer:
                producer.send(key="k", type="t", payload="first").result(60)
                lost = producer.send(key="k", type="t", payload="lost").exception(60)
                assert isinstance(lost, DeliveryTimeoutError)
                assert "not known" in lost.message
                monkeypatch.setattr(writer, "open_table", open_table)
                there = ["first", "lost"] if where == "after" else ["first"]
                assert producer.last_sequence() == len(there)
                assert producer.send(key="k", type="t", payload="next").result(60).sequence == len(there) + 1
                assert empty(producer)
            assert messages(place)["payload"].to_pylist() == [*there, "next"]

    def test_not_known_while_others_go_on(self, depot, faults, monkeypatch):
        """A commit with an unknown outcome is found when its producer sends again, even if others committed
        meanwhile.
        """

        def unreadable(location, role):
            raise TableUnreadableError("the depot cannot be read")

        def fail(attempt):
            if attempt == 2:
                monkeypatch.setattr(writer, "open_table", unreadable)
                raise OSError("connection lost")

        faults.after = fail
        with Producer(depot, "q") as other, Producer(depot, "p", delivery_timeout="3s") as producer:
            producer.send(key="k", type="t").result(60)
            assert "not known" in producer.send(key="k", type="t").exception(60).message
            monkeypatch.setattr(writer, "open_table", open_table)
            assert other.send(key="k", type="t").result(60) == Ack(3, 1)
            assert producer.send(key="k", type="t").result(60) == Ack(4, 3)

    def test_not_kept(self, depot, monkeypatch):
        """A message is not acknowledged if the disk fails to sync it; a second sync would succeed although the data is
        lost. Later messages come after it.
        """

        def fail(descriptor):
            raise OSError("input/output error")

        with Producer(depot, "p") as producer:
            with monkeypatch.context() as broken:
                broken.setattr(os, "fsync", fail)
                assert "may not have reached the disk" in str(producer.send(key="k", type="t").exception(60))
            assert producer.send(key="k", type="t").result(60).sequence == 2
        assert messages(depot)["sequence"].to_pylist() == [1, 2]

    def test_given_up(self, depot, faults):
        """Messages that are not committed by the deadline fail for every sender and free their buffer space; messages
        sent once the depot works again are delivered.
        """
        faults.before = fail_on(*range(1, 1_000))
        with Producer(depot, "p", delivery_timeout="5s") as producer:
            sent = [producer.send(key="k", type="t") for _ in range(10)]
            assert all(isinstance(future.exception(60), DeliveryTimeoutError) for future in sent)
            faults.before = fail_on()
            assert producer.send(key="k", type="t", payload="after").result(60).sequence == 1
            assert empty(producer)
            assert producer.metrics().record_error_total == 10
        assert messages(depot)["payload"].to_pylist() == ["after"]

    def test_hangs(self, depot, faults, gate):
        """While a commit hangs, its messages and later ones fail at their deadline; if it succeeds in the end, it
        counts.
        """
        faults.before = gate
        with Producer(depot, "p", max_commit_rows=1, delivery_timeout="300ms") as producer:
            first = producer.send(key="k", type="t")
            gate.await_commit()
            behind = producer.send(key="k", type="t")
            assert "not known" in str(first.exception(60))
            assert "is not in the depot" in str(behind.exception(60))
            gate.open()
        for thread in threading.enumerate():
            if thread.name.startswith("windrow-producer"):
                thread.join(60)
        assert empty(producer)
        with Producer(depot, "p") as again:
            assert again.send(key="k", type="t").result(60).sequence == 2
        assert messages(depot)["sequence"].to_pylist() == [1, 2]


class TestDurable:
    def test_kept_before_it_is_acknowledged(self, depot, monkeypatch):
        """A producer syncs the files of a commit and their directories before it acknowledges."""
        kept = []
        monkeypatch.setattr(
            os, "fsync", lambda descriptor: kept.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        )
        with Producer(depot, "p") as producer:
            assert producer.send(key="k", type="t").result(60) == Ack(1, 1)
            table = DeltaTable(depot)
            log = Path(depot, "_delta_log")
            assert {*table.file_uris(), str(log / f"{1:020}.json"), str(log), depot} <= set(kept)
            assert table.version() == 1
            kept.clear()
            assert producer.send(key="k", type="t").result(60) == Ack(2, 2)

    def test_what_others_wrote(self, depot, monkeypatch):
        """A new producer first syncs earlier commits, because it continues from their number."""
        create_depot(depot, pa.string())
        with Producer(depot, "p", fsync=False) as producer:
            producer.send(key="k", type="t").result(60)
        kept = []
        monkeypatch.setattr(
            os, "fsync", lambda descriptor: kept.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        )
        with Producer(depot, "p"):
            assert f"{1:020}.json" in kept

    def test_not_asked(self, depot, monkeypatch):
        """With `fsync = false` nothing is synced."""
        create_depot(depot, pa.string())
        monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("asked"))
        with Producer(depot, "p", fsync=False) as producer:
            assert producer.send(key="k", type="t").result(60) == Ack(1, 1)


class TestOthers:
    """Others change the depot while a producer has it open."""

    def test_append(self, depot):
        """While another writer appends, each message is in the version of its acknowledgement."""
        with Producer(depot, "p") as producer:
            other = pa.table([pa.nulls(1, field.type) for field in schema()], schema())
            acks = []
            for number in range(30):
                really_write(depot, other, mode="append")
                acks.append(producer.send(key=str(number), type="t").result(60))
        feed = pa.table(DeltaTable(depot).load_cdf(starting_version=1)).select(["sequence", "_commit_version"])
        versions = {row["sequence"]: row["_commit_version"] for row in feed.to_pylist() if row["sequence"]}
        assert versions == {ack.sequence: ack.version for ack in acks}

    def test_new_column(self, depot):
        """If the depot gets another column, it is NULL in the messages, now and after a restart."""
        with Producer(depot, "p") as producer:
            producer.send(key="k", type="t").result(60)
            DeltaTable(depot).alter.add_columns([Field("colour", PrimitiveType("string"))])
            assert producer.send(key="k", type="t").result(60).sequence == 2
        with Producer(depot, "p") as producer:
            assert producer.send(key="k", type="t").result(60).sequence == 3
        assert messages(depot)["colour"].to_pylist() == [None] * 3

    def test_other_columns(self, depot):
        """If the depot loses a column, the message fails at once with the reason."""
        with Producer(depot, "p") as producer:
            producer.send(key="k", type="t").result(60)
            really_write(depot, pa.table({"colour": ["red"]}), mode="overwrite", schema_mode="overwrite")
            for _ in range(2):
                assert isinstance(producer.send(key="k", type="t").exception(60), IncompatibleTableError)
            assert empty(producer)

    @pytest.mark.parametrize("replaced", [False, 0, 3], ids=["removed", "replaced", "replaced by a longer one"])
    def test_removed(self, depot, replaced):
        """When the depot is removed or replaced, messages fail and none is acknowledged. To delta-rs, a replacement
        with more versions looks like the old table with new commits.
        """
        with Producer(depot, "p") as producer:
            producer.send(key="k", type="t").result(60)
            shutil.rmtree(depot)
            if replaced is not False:
                create_depot(depot, pa.string(), "90d")
                other = pa.table([pa.nulls(1, field.type) for field in schema()], schema())
                for _ in range(replaced):
                    really_write(depot, other, mode="append")
            for _ in range(2):
                error = producer.send(key="k", type="t").exception(60)
                assert isinstance(error, TableMissingError if replaced is False else IncompatibleTableError)
            assert empty(producer)
        assert not DeltaTable.is_deltatable(depot) or DeltaTable(depot).version() == (replaced or 0)

    def test_asked(self, depot):
        """The position of a producer can be read while another process commits; reading it does not create a removed
        depot.
        """
        with Producer(depot, "p") as producer:
            producer.send(key="k", type="t").result(60)
            with FileLock(Path(depot).parent / ".depot.lock"):
                assert producer.last_sequence() == 1
            shutil.rmtree(depot)
            with pytest.raises(TableMissingError):
                producer.last_sequence()
            assert not DeltaTable.is_deltatable(depot)

    def test_log_cleaned_up(self, depot):
        """A producer that was idle while the log was cleaned up continues."""
        with Producer(depot, "p") as producer:
            for _ in range(3):
                producer.send(key="k", type="t").result(60)
            with Producer(depot, "other") as other:
                other.send(key="k", type="t").result(60)
            DeltaTable(depot).create_checkpoint()
            for version in range(4):
                (Path(depot) / "_delta_log" / f"{version:020}.json").unlink()
            assert producer.send(key="k", type="t").result(60).sequence == 4


def send_elsewhere(depot):
    program = f"from windrow import Producer\nwith Producer({depot!r}, 'p') as p: p.send(key='k', type='other')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


class TestFence:
    def test_second_process(self, depot):
        """When another process writes under the id, all held messages fail, and later sends raise."""
        with Producer(depot, "p", linger=NEVER) as producer:
            producer.send(key="k", type="t").result(60)
            send_elsewhere(depot)
            sent = [producer.send(key="k", type="t") for _ in range(3)]
            assert producer.flush(60)
            assert all(isinstance(future.exception(0), ProducerFencedError) for future in sent)
            assert producer.state is ProducerState.FENCED
            with pytest.raises(ProducerFencedError):
                producer.send(key="k", type="t")
            assert empty(producer)
        assert messages(depot)["type"].to_pylist() == ["t", "other"]
        with Producer(depot, "p") as again:
            assert again.send(key="k", type="t").result(60).sequence == 3

    def test_between_look_and_commit(self, depot, faults):
        """A commit fails if another process committed under the id just before."""

        def overtake(attempt):
            if attempt == 2:
                noted = CommitProperties(app_transactions=[Transaction("producer:p", 7)])
                really_write(depot, messages(depot), mode="append", commit_properties=noted)

        faults.before = overtake
        with Producer(depot, "p") as producer:
            producer.send(key="k", type="t").result(60)
            assert isinstance(producer.send(key="k", type="late").exception(60), ProducerFencedError)
            assert producer.last_sequence() == 7
        assert messages(depot)["type"].to_pylist() == ["t", "t"]

    def test_id_moves_in(self, depot):
        """An id that another process used and closed continues here, even if this process had the depot open before."""
        with Producer(depot, "q") as other:
            other.send(key="k", type="t").result(60)
            send_elsewhere(depot)
            with Producer(depot, "p") as producer:
                assert producer.send(key="k", type="t").result(60).sequence == 2

    def test_fenced_once(self, depot):
        """A fenced producer can be opened again when nobody else writes under its id."""
        with Producer(depot, "q"):
            producer = Producer(depot, "p")
            producer.send(key="k", type="t").result(60)
            send_elsewhere(depot)
            assert isinstance(producer.send(key="k", type="t").exception(60), ProducerFencedError)
            producer.close()
            for number in (3, 4):
                with Producer(depot, "p") as again:
                    assert again.send(key="k", type="t").result(60).sequence == number

    def test_forked(self, depot):
        """The copy of a producer in a forked process refuses to send, and closing it does nothing; the original goes
        on.
        """
        with Producer(depot, "p") as producer:
            child = os.fork()
            if child == 0:
                try:
                    producer.send(key="k", type="t")
                except ProducerInUseError:
                    producer.close()
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert producer.send(key="k", type="t").result(60) == Ack(1, 1)


class TestFull:
    def test_raise(self, depot, faults, gate):
        """With `block_timeout = "0s"` a message without room is refused, and the others are delivered."""
        faults.before = gate
        with Producer(depot, "p", max_buffer_bytes=150, max_message_bytes=100, block_timeout="0s") as producer:
            sent = [producer.send(key="k", type="t") for _ in range(2)]
            with pytest.raises(BufferFullError):
                producer.send(key="k", type="t")
            gate.open()
            wait(sent, 60)
            assert empty(producer)
        assert messages(depot).num_rows == 2

    def test_block(self, depot, faults, gate):
        """A sender waits for room at most `block_timeout`; waiting senders are served in order."""
        faults.before = gate
        limits = {"max_buffer_bytes": 150, "max_message_bytes": 100, "block_timeout": "100ms"}
        with Producer(depot, "p", max_commit_rows=1, **limits) as producer:
            sent = [producer.send(key="k", type="t") for _ in range(2)]
            with pytest.raises(BufferFullError):
                producer.send(key="k", type="t")
            gate.open()
            assert [future.result(60).sequence for future in sent] == [1, 2]
            assert empty(producer)

    def test_order(self, depot):
        """A buffer with room for one message keeps the order of a sender."""
        with Producer(depot, "p", max_buffer_bytes=100, max_message_bytes=100) as producer:
            for number in range(30):
                producer.send(key="k", type="t", payload=str(number))
        assert messages(depot)["payload"].to_pylist() == [str(number) for number in range(30)]


class TestCallbacks:
    @pytest.mark.parametrize("error", [ValueError, SystemExit], ids=lambda error: error.__name__)
    def test_raise(self, depot, error):
        """A callback that raises, whatever it is, harms no other message."""

        def fail(_):
            raise error("of a callback")

        with Producer(depot, "p", linger=NEVER) as producer:
            sent = [producer.send(key="k", type="t") for _ in range(5)]
            sent[1].add_done_callback(fail)
            producer.flush(60)
            assert all(future.done() for future in sent)
            assert producer.send(key="k", type="t").result(60).sequence == 6

    def test_send_and_flush(self, depot):
        """A callback may send, but waiting there for its own thread is an error."""
        outcomes = {}
        ended = threading.Event()

        def again(_):
            outcomes["sent"] = producer.send(key="k", type="t")
            try:
                producer.flush()
            except ProducerInUseError as error:
                outcomes["error"] = error
            ended.set()

        with Producer(depot, "p") as producer:
            producer.send(key="k", type="t").add_done_callback(again)
            assert ended.wait(60)
            assert outcomes["sent"].result(60).sequence == 2
            assert isinstance(outcomes["error"], ProducerInUseError)

    def test_full(self, depot):
        """A callback that sends without room gets an error at once, because only its own thread could free room."""
        outcomes = []
        ended = threading.Event()

        def fill(_):
            many = pa.table({"key": ["k"] * 100, "type": ["t"] * 100})
            for send in (
                lambda: producer.send(key="k", type="t"),
                lambda: producer.send_many(many),
                lambda: producer.send(key="k" * 50, type="t"),
            ):
                try:
                    outcomes.append(send())
                except BufferFullError as error:
                    outcomes.append(error)
            ended.set()

        limits = {"max_buffer_bytes": 150, "max_message_bytes": 100, "block_timeout": "1h"}
        with Producer(depot, "p", **limits) as producer:
            producer.send(key="k", type="t").add_done_callback(fill)
            assert ended.wait(60)
            assert outcomes[0].result(60).sequence == 2
            assert [type(error) for error in outcomes[1:]] == [BufferFullError, BufferFullError]

    def test_open(self, depot, faults, gate):
        """When a producer closes, the callback of a failed message may open another producer, even with the same id,
        and send the message again; it comes after the commit in progress.
        """
        producers = {}

        def again(_):
            for name in ("p", "q"):
                producers[name] = Producer(depot, name)
                producers[name].send(key="k", type="t", payload="again")

        faults.before = gate
        producer = Producer(depot, "p", max_commit_rows=1)
        producer.send(key="k", type="t")
        gate.await_commit()
        producer.send(key="k", type="t").add_done_callback(again)
        closing = threading.Thread(target=lambda: producer.close(0.1), daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
        gate.open()
        for other in producers.values():
            other.close()
        assert [producers[name].last_sequence() for name in ("p", "q")] == [2, 1]

    def test_open_while_closing(self, depot, faults, gate):
        """Opening an id that is being closed waits, and continues after its messages; in a callback it is an error."""
        outcomes = []

        def call(_):
            try:
                Producer(depot, "p")
            except ProducerInUseError as error:
                outcomes.append(error)

        faults.before = gate
        producer = Producer(depot, "p")
        producer.send(key="k", type="t").add_done_callback(call)
        gate.await_commit()
        closing = threading.Thread(target=producer.close)
        closing.start()
        while producer.state is not ProducerState.CLOSING:
            closing.join(0.01)

        def reopen():
            with Producer(depot, "p") as other:
                outcomes.append(other.send(key="k", type="t").result(60).sequence)

        opening = threading.Thread(target=reopen)
        opening.start()
        opening.join(0.2)
        assert not outcomes
        gate.open()
        opening.join(60)
        closing.join(60)
        in_use, sequence = outcomes
        assert isinstance(in_use, ProducerInUseError)
        assert sequence == 2

    def test_open_while_its_commit_hangs(self, depot, faults, gate):
        """An id can be opened again while a given-up commit of it still hangs: it continues after that commit, and
        nobody is fenced.
        """
        faults.before = gate
        producer = Producer(depot, "p")
        given_up = producer.send(key="k", type="t")
        gate.await_commit()
        producer.close(0)
        assert "not known" in str(given_up.exception(60))
        with Producer(depot, "p") as again:
            sent = again.send(key="k", type="t")
            gate.open()
            assert sent.result(60).sequence == 2


class TestEnd:
    def test_given_up_before_it_is_written(self, depot, monkeypatch, gate):
        """Messages that were given up before their commit began are not written, so that sending them again does not
        double them.
        """
        really_table = Batch.table

        def table(*arguments):
            gate(1)
            return really_table(*arguments)

        monkeypatch.setattr(Batch, "table", table)
        producer = Producer(depot, "p")
        given_up = producer.send(key="k", type="t")
        gate.await_commit()
        producer.close(0)
        assert isinstance(given_up.exception(60), DeliveryTimeoutError)
        gate.open()
        with Producer(depot, "p") as again:
            assert again.send(key="k", type="t").result(60).sequence == 1

    def test_close_in_vain(self, depot, faults, gate):
        """Messages that a closing producer cannot commit in time fail, and their futures say so."""
        faults.before = gate
        producer = Producer(depot, "p", max_commit_rows=1)
        first = producer.send(key="k", type="t")
        gate.await_commit()
        second = producer.send(key="k", type="t")
        producer.close(timeout=0.1)
        assert isinstance(first.exception(0), DeliveryTimeoutError)
        assert isinstance(second.exception(0), ProducerClosedError)

    def test_exit(self, depot):
        """At the end of a program held messages are committed, and their futures end."""
        program = (
            "from windrow import Producer\n"
            f"producer = Producer({depot!r}, 'p', linger={NEVER!r})\n"
            "future = producer.send(key='k', type='t')\n"
            "future.add_done_callback(lambda done: print(done.result().sequence))\n"
        )
        completed = subprocess.run(
            [sys.executable, "-c", program], check=True, timeout=120, capture_output=True, text=True
        )
        assert completed.stdout == "1\n"
        assert messages(depot).num_rows == 1

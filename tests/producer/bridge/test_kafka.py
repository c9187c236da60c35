"""The Kafka bridge and a real broker: each message once, whatever is killed, taken away or made again."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

pytest.importorskip("confluent_kafka")

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as Publisher

from tests.producer.bridge.broker import PATIENCE_SECONDS, free_port, until
from tests.producer.bridge.kafka_broker import PASSWORD, KafkaBroker
from tests.producer.conftest import messages
from windrow.errors import BrokerError, OffsetOutOfRangeError, ProducerFencedError, SettingsError
from windrow.producer.bridge.kafka import KafkaBridge
from windrow.producer.bridge.kafka_partition import Partition, producer_of, record
from windrow.producer.bridge.summary import KafkaStats
from windrow.settings.settings import Settings

pytestmark = pytest.mark.kafka


def settings(
    kafka: KafkaBroker, depot: str, *topics: str, producer: Any = None, payload_type: str = "", **chosen: Any
) -> Settings:
    part = {"bootstrap_servers": kafka.place, "topics": list(topics)} | chosen
    sections = {"kafka": part, "producer": producer or {}, "payload_type": payload_type}
    return Settings(depot=depot, ledger=f"{depot}-ledger", **sections)


def bridge(*arguments: Any, **chosen: Any) -> KafkaStats:
    """Read to the end."""
    with KafkaBridge(settings(*arguments, **chosen), until_end=True) as opened:
        return opened.run(PATIENCE_SECONDS)


def payloads(depot: str) -> list[str]:
    return sorted(messages(depot)["payload"].to_pylist(), key=lambda text: (len(text), text))


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


class TestLag:
    """`windrow status --kafka`: what the broker has, and the depot has not."""

    def test_measured(self, kafka, depot, windrow, tmp_path):
        """Before the first reading everything counts, then what came since; the broker is asked, so no bridge must
        run.
        """
        topic = kafka.topic(2)
        kafka.publish(topic, *numbers(3))
        bridge(kafka, depot, kafka.topic())
        part = f'bootstrap_servers = "{kafka.place}"\ntopics = ["{topic}"]\n'
        Path("windrow.toml").write_text(f'depot = "{depot}"\nledger = "{depot}-ledger"\n[kafka]\n{part}')
        windrow("run")
        assert "3 offsets of 2 partitions are not in the depot" in windrow("status", "--kafka").out
        bridge(kafka, depot, topic)
        kafka.publish(topic, *numbers(2), partition=1)
        before = time.time()
        result = windrow("status", "--kafka", "--json", "--fail-if", "kafka_lag>1")
        document = result.json()
        assert (result.status, document["failed"], document["kafka"]["lag"]) == (
            1,
            ["kafka_lag>1 holds: kafka_lag is 2"],
            2,
        )
        assert [
            (partition["depot_offset"], partition["end_offset"]) for partition in document["kafka"]["partitions"]
        ] == [(3, 3), (0, 2)]
        measured = datetime.fromisoformat(document["kafka"]["measured_at"]).timestamp()
        assert before <= measured <= time.time()
        assert f"most: {topic}/1 2; measured at " in windrow("status", "--kafka").out
        bridge(kafka, depot, topic)
        assert "kafka   0 offsets of 2 partitions" in windrow("status", "--kafka").out
        assert windrow("status", "--json").json()["kafka"] is None

    def test_no_answer(self, kafka, depot, windrow):
        """A broker that does not answer, or no topics to ask for, is an error with a code."""
        bridge(kafka, depot, kafka.topic())
        places = ["--depot", depot, "--ledger", f"{depot}-ledger"]
        windrow("run", *places)
        assert "WINDROW-SETTINGS: there are no topics to query" in windrow("status", "--kafka", *places).err
        part = f'bootstrap_servers = "127.0.0.1:{free_port()}"\ntopics = ["t"]\n'
        Path("windrow.toml").write_text(f"[kafka]\n{part}")
        result = windrow("status", "--kafka", *places)
        assert (result.status, "WINDROW-BROKER: no broker answers" in result.err) == (3, True)


class TestReading:
    def test_end_and_on(self, kafka, depot):
        """It ends when everything is read, and goes on there; the partition is the source, the offset the sequence."""
        topic = kafka.topic(2)
        kafka.publish(topic, *numbers(3))
        kafka.publish(topic, *numbers(2, 3), partition=1)
        assert bridge(kafka, depot, topic).committed == 5
        kafka.publish(topic, *numbers(2, 5))
        assert bridge(kafka, depot, topic).committed == 2
        assert payloads(depot) == numbers(7)
        rows = [row for row in messages(depot).to_pylist() if row["source"] == f"{topic}/0"]
        assert [row["sequence"] for row in rows] == [0, 1, 2, 3, 4]
        assert {(row["key"], row["type"]) for row in rows} == {("pump-1", topic)}
        log = DeltaTable(depot)
        assert log.transaction_version(f"mark:kafka:windrow-bridge:{topic}/0") == 5
        assert log.transaction_version(f"mark:kafka:windrow-bridge:{topic}/1") == 2

    def test_given_back(self, kafka, depot, monkeypatch):
        """A worker that gives back its partitions and gets them again reads on to their end, none of them twice."""
        topic = kafka.topic(2)
        kafka.publish(topic, *numbers(6))
        kafka.publish(topic, *numbers(6, 6), partition=1)
        again: list[KafkaStats] = []

        def join(counts: KafkaStats) -> None:
            if counts.committed >= 2 and not again:
                again.append(counts)
                opened._join()

        monkeypatch.setattr("windrow.producer.bridge.kafka.TICK", 0.001)  # looks whether it is at the end without any
        one_by_one = settings(kafka, depot, topic, producer={"max_commit_rows": 1})
        with KafkaBridge(one_by_one, join, until_end=True) as opened:
            assert opened.run(PATIENCE_SECONDS).lag == 0
        assert payloads(depot) == numbers(12)

    def test_group_offsets_do_not_count(self, kafka, depot):
        """Kafka's committed offsets follow the depot, and a change of them neither loses nor repeats a message."""
        topic = kafka.topic()
        kafka.publish(topic, *numbers(4))
        bridge(kafka, depot, topic)
        group = Consumer({"bootstrap.servers": kafka.place, "group.id": "windrow-bridge"})
        assert group.committed([TopicPartition(topic, 0)], 10)[0].offset == 4
        group.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        group.close()
        assert bridge(kafka, depot, topic).committed == 0
        assert payloads(depot) == numbers(4)

    @pytest.mark.parametrize(
        ("start_from", "count"),
        [
            ("earliest", 6),
            ("latest", 2),
            ("timestamp:1970-01-02T00:00:00Z", 6),
            ("timestamp:2999-01-01T00:00:00Z", 2),
        ],
    )
    def test_start(self, kafka, depot, start_from, count):
        """A start counts for a partition that the depot does not know, once: what comes before the next run is read."""
        topic = kafka.topic()
        kafka.publish(topic, *numbers(4))
        bridge(kafka, depot, topic, start_from=start_from)
        kafka.publish(topic, *numbers(2, 4))
        bridge(kafka, depot, topic, start_from="latest")
        assert payloads(depot) == numbers(6)[-count:]

    def test_json(self, kafka, depot):
        """Fields of a JSON value, the key, headers, topic, partition and offset fill columns; the event time has a
        unit.
        """
        topic = kafka.topic()
        publisher = Publisher({"bootstrap.servers": kafka.place})
        value = json.dumps({"device": "p7", "kind": "level", "at": 1_769_860_800_250, "v": 1})
        publisher.produce(topic, value, "k", headers={"site": "hall-2"})
        publisher.flush()
        field_map = ["key=device", "type=kind", "source=kafka.headers.site"]
        bridge(kafka, depot, topic, field_map=field_map, event_time="json:at:ms")
        (row,) = messages(depot).to_pylist()
        assert (row["source"], row["key"], row["type"], row["payload"]) == ("hall-2", "p7", "level", value)
        assert row["event_time"].timestamp() == 1_769_860_800.25

    def test_invalid(self, kafka, depot):
        """What is no message is in the depot with its reason, whole: not JSON, not text, without a key, a tombstone."""
        topic = kafka.topic()
        kafka.publish(topic, "no json", b"\xff\x00", None, '{"kind": "level"}', '{"kind": 5}')
        kafka.publish(topic, '{"kind": "level"}', key=None)
        stats = bridge(kafka, depot, topic, field_map=["type=kind"])
        assert (stats.committed, stats.invalid) == (6, 5)
        rows = [(row["sequence"], row["event_time"], row["payload"]) for row in messages(depot).to_pylist()]
        assert [time is None for _, time, _ in rows].count(True) == 5
        refused = {
            rejection["offset"]: rejection for rejection in (json.loads(text) for _, when, text in rows if when is None)
        }
        assert "not JSON" in refused[0]["reason"]
        assert refused[0]["value"] == "no json"
        assert (refused[1]["reason"], refused[1]["value"]) == ("kafka.value is not UTF-8 text", "data:;base64,/wA=")
        assert refused[2]["value"] is None
        assert "kind is not text" in refused[4]["reason"]
        assert "kafka.key is missing" in refused[5]["reason"]

    def test_binary(self, kafka, depot):
        """A depot of bytes keeps values as they are, and a tombstone is a message without a payload."""
        topic = kafka.topic()
        kafka.publish(topic, b"\xff\x00", None, "text")
        assert bridge(kafka, depot, topic, payload_type="BINARY").invalid == 0
        assert messages(depot)["payload"].to_pylist() == [b"\xff\x00", None, b"text"]

    def test_transactions(self, kafka, depot):
        """Aborted messages and open transactions are not read, and control records are no lag."""
        topic = kafka.topic()
        publisher = Publisher({"bootstrap.servers": kafka.place, "transactional.id": topic})
        publisher.init_transactions()
        for number, finish in enumerate((publisher.commit_transaction, publisher.abort_transaction, None)):
            publisher.begin_transaction()
            publisher.produce(topic, str(number), "k")
            publisher.flush()
            if finish is not None:
                finish()
        bridge(kafka, depot, topic)
        assert payloads(depot) == ["0"]
        publisher.commit_transaction()
        assert bridge(kafka, depot, topic).lag == 0
        assert payloads(depot) == ["0", "2"]

    def test_compaction(self, kafka, depot):
        """Gaps that compaction left are no loss: what is left is read once."""
        topic = kafka.topic(
            cleanup_policy="compact", segment_bytes="1048576", segment_ms="100", min_cleanable_dirty_ratio="0.01"
        )
        for number in range(5):
            kafka.publish(topic, str(number))
        time.sleep(0.3)
        kafka.publish(topic, "other", key="other")
        time.sleep(2)
        bridge(kafka, depot, topic)
        compacted = messages(depot)["payload"].to_pylist()
        kafka.publish(topic, None)
        bridge(kafka, depot, topic)
        assert messages(depot)["payload"].to_pylist() == [*compacted, None]
        assert compacted[-2:] == ["4", "other"]

    def test_lag(self, kafka, depot):
        """The lag counts what the broker has and the depot does not, down to nothing."""
        topic, seen = kafka.topic(2), set()
        kafka.publish(topic, *numbers(3))
        kafka.publish(topic, *numbers(4), partition=1)
        with KafkaBridge(
            settings(kafka, depot, topic, producer={"max_commit_rows": 1}),
            lambda counts: seen.add((counts.committed, counts.lag)),
            until_end=True,
        ) as opened:
            assert opened.run(PATIENCE_SECONDS).lag == 0
        assert {committed + lag for committed, lag in seen if committed} == {7}

    def test_to_closed_batches(self, kafka, windrow, tmp_path):
        """The whole way with commands: messages of a topic are in closed batches, what is no message is rejected, and
        the books are right.
        """
        topic, now = kafka.topic(), int(time.time()) // 10 * 10
        for kind, at in (("level", now - 40), ("flow", now - 39), ("level", now - 20), ("flow", now - 19)):
            kafka.publish(topic, json.dumps({"kind": kind, "at": at}), stamp=at * 1_000)
        kafka.publish(topic, "?")
        (tmp_path / "windrow.toml").write_text(
            f'depot = "d"\nledger = "l"\nrules = {{ window = "10s" }}\n'
            f'[kafka]\nbootstrap_servers = "{kafka.place}"\ntopics = ["{topic}"]\n'
            'event_time = "json:at"\nfield_map = ["type=kind"]\n'
        )
        result = windrow("bridge", "kafka", "--until-end")
        assert f"5 messages from {kafka.place} in d, 1 of them invalid; 1 partition at the end, lag 0." in result.out
        assert windrow("run", "--json").json()["message_count"] == 5
        windrow("tick", "--all")
        closed = windrow("show", "--closed", "--json").json()
        assert [(batch["source"], len(batch["messages"])) for batch in closed] == [(f"{topic}/0", 2)] * 2
        (rejected,) = windrow("show", "--rejected", "--json").json()
        assert rejected["reason"] == "invalid"
        assert "not JSON" in rejected["payload"]
        assert windrow("verify").status == 0


class TestRefusals:
    def test_made_again(self, kafka, depot):
        """A topic that was deleted and made again is an error, also if its offsets have passed ours."""
        topic = kafka.topic()
        kafka.publish(topic, *numbers(3))
        bridge(kafka, depot, topic)
        kafka.delete(topic)
        kafka.topic(name=topic)
        kafka.publish(topic, *numbers(5, 10))
        with pytest.raises(OffsetOutOfRangeError, match="deleted and recreated"):
            bridge(kafka, depot, topic)
        assert payloads(depot) == numbers(3)
        assert bridge(kafka, depot, topic, group_id="second").committed == 5

    def test_removed(self, kafka, depot):
        """Messages that the broker removed unread are an error, until the group's offset is reset by hand."""
        topic = kafka.topic()
        kafka.publish(topic, *numbers(3))
        bridge(kafka, depot, topic)
        kafka.publish(topic, *numbers(4, 3))
        kafka.admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0)].result(10)
        with pytest.raises(OffsetOutOfRangeError, match="only up to 3"):
            bridge(kafka, depot, topic)
        group = Consumer({"bootstrap.servers": kafka.place, "group.id": "windrow-bridge"})
        group.commit(offsets=[TopicPartition(topic, 0, 6)], asynchronous=False)
        group.close()
        assert bridge(kafka, depot, topic).committed == 2
        assert payloads(depot) == ["0", "1", "2", "5", "6"]

    def test_removed_before_the_first(self, kafka, depot):
        """A partition is known from the first run on, also if it was empty: what is removed then is missed."""
        topic = kafka.topic()
        assert bridge(kafka, depot, topic).committed == 0
        kafka.publish(topic, *numbers(3))
        kafka.admin.delete_records([TopicPartition(topic, 0, 2)])[TopicPartition(topic, 0)].result(10)
        with pytest.raises(OffsetOutOfRangeError, match="only up to 0"):
            bridge(kafka, depot, topic)

    def test_removed_while_it_reads(self, kafka, depot):
        """Messages that the broker removes while the bridge is behind are an error, too."""
        topic = kafka.topic()
        for number in numbers(9):
            kafka.publish(topic, number * 2_000)

        def remove(counts: KafkaStats) -> None:
            if counts.committed == 2:
                kafka.admin.delete_records([TopicPartition(topic, 0, 8)])[TopicPartition(topic, 0)].result(10)

        small = {"queued.min.messages": "1", "max.partition.fetch.bytes": "1000"}
        slow = settings(kafka, depot, topic, producer={"max_commit_rows": 1}, properties=small)
        with (
            KafkaBridge(slow, remove, until_end=True) as opened,
            pytest.raises(OffsetOutOfRangeError, match="were not read"),
        ):
            opened.run(PATIENCE_SECONDS)

    def test_lost(self, kafka, depot):
        """Messages that the broker lost are an error, also if others have their offsets by now."""
        topic = kafka.topic()
        kafka.publish(topic, *numbers(5))
        bridge(kafka, depot, topic)
        kafka.lose(topic)
        kafka.publish(topic, *numbers(8))
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError, match="another message at offset 4") as refused:
                bridge(kafka, depot, topic)
        assert "Use another group" in refused.value.hint
        assert payloads(depot) == numbers(5)
        assert bridge(kafka, depot, topic, group_id="second").committed == 8

    def test_lost_and_nothing_there(self, kafka, depot):
        """So they are if at the last offset there is no message, but one of an aborted transaction."""
        topic = kafka.topic()
        kafka.publish(topic, *numbers(2))
        bridge(kafka, depot, topic)
        kafka.lose(topic)
        publisher = Publisher({"bootstrap.servers": kafka.place, "transactional.id": topic})
        publisher.init_transactions()
        publisher.begin_transaction()
        for number in numbers(4):
            publisher.produce(topic, number, "k")
        publisher.flush()
        publisher.abort_transaction()
        with pytest.raises(OffsetOutOfRangeError, match="no message at offset 1"):
            bridge(kafka, depot, topic)

    def test_lost_while_it_runs(self, kafka, depot, tmp_path, monkeypatch):
        """So they are to a worker that runs, and is slower than those that publish again."""
        monkeypatch.setenv("WINDROW_KAFKA__PROPERTIES", "{}")
        topic = kafka.topic()
        kafka.publish(topic, *numbers(5))
        worker = Worker(kafka, depot, topic, tmp_path / "log")
        try:
            until(lambda: rows(depot) == 5, "the first messages")
            worker.tell(signal.SIGSTOP)
            kafka.lose(topic)
            kafka.publish(topic, *numbers(8))
            worker.tell(signal.SIGCONT)
            assert worker.process.wait(PATIENCE_SECONDS) == 3
        finally:
            worker.end()
        assert "another message at offset 4" in worker.log.read_text()
        assert payloads(depot) == numbers(5)

    def test_removed_up_to_the_last(self, kafka, depot):
        """It is no error that Kafka has removed what was read, the last message of it, too."""
        topic = kafka.topic()
        kafka.publish(topic, *numbers(3))
        bridge(kafka, depot, topic)
        kafka.publish(topic, *numbers(2, 3))
        kafka.admin.delete_records([TopicPartition(topic, 0, 3)])[TopicPartition(topic, 0)].result(10)
        bridge(kafka, depot, topic)
        assert payloads(depot) == numbers(5)

    def test_compacted_up_to_the_last(self, kafka, depot, caplog):
        """Nor is it an error that compaction has removed it."""
        compacts = {"segment_bytes": "1048576", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
        topic = kafka.topic(cleanup_policy="compact", **compacts)
        kafka.publish(topic, "0")
        bridge(kafka, depot, topic)
        for value, key in (("1", "pump-1"), ("2", "other"), ("3", "other")):
            time.sleep(0.3)
            kafka.publish(topic, value, key=key)
        time.sleep(2)
        bridge(kafka, depot, topic)
        assert "last message gone" in caplog.text
        assert {"0", "1", "3"} <= set(payloads(depot))

    def test_unknown_last(self, kafka, depot):
        """An offset that was recorded without its message is taken as it is."""
        topic = kafka.topic()
        kafka.publish(topic, *numbers(5))
        with producer_of(settings(kafka, depot), f"{topic}/0") as earlier:
            record(earlier, 3)
        bridge(kafka, depot, topic)
        assert payloads(depot) == numbers(2, 3)

    def test_no_topic(self, kafka, depot):
        """A topic that is not there is an error, not a wait."""
        with pytest.raises(BrokerError, match="Unknown topic"):
            bridge(kafka, depot, "nowhere")

    def test_no_broker(self, kafka, depot):
        """An address where no broker is is an error, not a wait."""
        place = f"127.0.0.1:{free_port()}"
        with pytest.raises(BrokerError, match=f"no broker answers at {place}.*refused"):
            bridge(kafka, depot, "t", bootstrap_servers=place)

    def test_password(self, kafka, depot, windrow, tmp_path, monkeypatch):
        """A password is accepted from its file; a wrong one is an error that does not show it, and no command does."""
        topic = kafka.topic()
        kafka.publish(topic, "1")
        (tmp_path / "secret").write_text(f"{PASSWORD}\n")
        (tmp_path / "windrow.toml").write_text(
            f'[kafka]\nbootstrap_servers = "{kafka.guarded}"\ntopics = ["{topic}"]\n'
            '[kafka.properties]\n"sasl.username" = "windrow"\n'
            '"security.protocol" = "SASL_PLAINTEXT"\n"sasl.mechanism" = "PLAIN"\n"ssl.key.password" = "heron-12"\n'
        )
        monkeypatch.setenv("WINDROW_KAFKA__PASSWORD", "file:secret")
        assert windrow("bridge", "kafka", "--until-end", "--json").json()["committed"] == 1
        monkeypatch.setenv("WINDROW_KAFKA__PASSWORD", "wrong-77")
        refused = windrow("bridge", "kafka", "--log-level", "debug")
        assert refused.status == 3
        assert "WINDROW-BROKER: the broker" in refused.err
        assert "Authentication failed" in refused.err
        shown = windrow("settings")
        assert shown.status == 0
        for result in (refused, shown):
            assert not any(secret in result.out + result.err for secret in ("wrong-77", "heron-12", PASSWORD))

    @pytest.mark.parametrize(
        "arguments", [("kafka", "--client-id", "x"), ("mqtt", "--until-end"), ("kafka",), ("amqp",)]
    )
    def test_options(self, windrow, arguments):
        """An option of the other kind of broker is refused, and so are another kind and a bridge without topics."""
        result = windrow("bridge", *arguments)
        assert result.status == 2
        assert result.err.startswith("WINDROW-SETTINGS: ")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"start_from": "soon"},
            {"start_from": "timestamp:soon"},
            {"field_map": ["event_time=at"]},
            {"field_map": ["key=kafka.kee"]},
            {"properties": {"isolation.level": "read_uncommitted"}},
            {"event_time": "soon"},
        ],
    )
    def test_settings(self, kafka, depot, wrong):
        """Wrong settings are refused at the start."""
        with pytest.raises(SettingsError):
            KafkaBridge(settings(kafka, depot, "t", **wrong))


class TestFence:
    def test_zombie(self, kafka, depot):
        """A worker that lost its partition and does not know it commits nothing."""
        chosen, topic = settings(kafka, depot, "t"), kafka.topic()
        kafka.publish(topic, *numbers(4))
        reader = Consumer({"bootstrap.servers": kafka.place, "group.id": "x"})
        reader.assign([TopicPartition(topic, 0, 0)])
        records = [until(lambda: reader.poll(1), "a message") for _ in range(4)]
        reader.close()
        first = Partition(chosen, topic, 0)
        first.buffered = records[:2]
        first.send(KafkaStats("", "", ""))
        first.settle(KafkaStats("", "", ""))
        other = """if True:
            import sys, pyarrow
            from windrow import Producer
            with Producer(sys.argv[1], sys.argv[2]) as one:
                one.send_many(pyarrow.table({"key": ["k"], "type": ["t"], "payload": ["2"]}), 3).result()
        """
        subprocess.run([sys.executable, "-c", other, depot, f"kafka:windrow-bridge:{topic}/0"], check=True)
        first.buffered = records[2:]
        first.send(KafkaStats("", "", ""))
        with pytest.raises(ProducerFencedError):
            first.settle(KafkaStats("", "", ""))
        assert payloads(depot) == ["0", "1", "2"]


class Worker:
    """A worker in a process of its own."""

    def __init__(self, kafka: KafkaBroker, depot: str, topic: str, log: Path) -> None:
        self.log = log
        (log.parent / "windrow.toml").write_text(
            f'depot = "{depot}"\n[kafka]\nbootstrap_servers = "{kafka.place}"\ntopics = ["{topic}"]\n'
            'properties = { "session.timeout.ms" = "1500", "heartbeat.interval.ms" = "300" }\n'
            '[producer]\nlinger = "20ms"\nmax_commit_rows = 50\n'
        )
        command = [sys.executable, "-m", "windrow", "bridge", "kafka", "--json"]
        with log.open("a") as out:
            self.process = subprocess.Popen(command, cwd=log.parent, stdout=out, stderr=out)

    def tell(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        """End it, also while it is paused."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        self.process.wait(PATIENCE_SECONDS)


class Stream:
    """Numbers, published to all partitions until it is stopped."""

    def __init__(self, kafka: KafkaBroker, topic: str, partitions: int) -> None:
        self.count = 0
        self._kafka, self._topic, self._partitions = kafka, topic, partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def stop(self) -> int:
        """Publish no more; return how many there are."""
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        return self.count

    def _publish(self) -> None:
        publisher = Publisher({"bootstrap.servers": self._kafka.place})
        while not self._stop.wait(0.005):
            for _ in range(10):
                publisher.produce(self._topic, str(self.count), "k", self.count % self._partitions)
                self.count += 1
            publisher.poll(0)
        assert not publisher.flush(PATIENCE_SECONDS)


def count_payloads(depot: str) -> Counter[str]:
    return Counter(messages(depot)["payload"].to_pylist())


def lost_and_twice(depot: str, count: int) -> tuple[int, int]:
    counts = count_payloads(depot)
    return len(set(numbers(count)) - counts.keys()), sum(counts.values()) - len(counts)


def rows(depot: str) -> int:
    return messages(depot).num_rows if DeltaTable.is_deltatable(depot) else 0


def rounds(kafka: KafkaBroker, depot: str, folder: Path, acts: Sequence[str]) -> tuple[int, int]:
    """Kill, stop, pause and start two workers, one act after the other; return how many messages are lost and twice."""
    topic, chance = kafka.topic(4), random.Random(len(acts))
    folder.mkdir(exist_ok=True)
    workers = [Worker(kafka, depot, topic, folder / f"{at}.log") for at in range(2)]
    stream = Stream(kafka, topic, 4)
    try:
        until(lambda: rows(depot), "the first messages")
        for act in acts:
            at = chance.randrange(2)
            time.sleep(chance.uniform(0.2, 2))
            if act == "pause":
                workers[at].tell(signal.SIGSTOP)
                time.sleep(3)  # longer than its session
                workers[at].tell(signal.SIGCONT)
                continue
            workers[at].end(signal.SIGKILL if act == "kill" else signal.SIGTERM)
            workers[at] = Worker(kafka, depot, topic, folder / f"{at}.log")
        count = stream.stop()
        until(lambda: len(count_payloads(depot)) >= count, "all messages")
        time.sleep(1)
    finally:
        stream.stop()
        for worker in workers:
            worker.end()
    return lost_and_twice(depot, count)


KILLED = """if True:
    import os, signal, sys
    from windrow.cli import main
    from windrow.producer.writer import DepotWriter
    really, when, attempts = DepotWriter._write, sys.argv.pop(1), []

    def write(ours, rows, entry):
        attempts.append(rows.num_rows)
        dies = sum(attempts) > 12 and rows.num_rows
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        version = really(ours, rows, entry)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return version

    DepotWriter._write = write
    sys.exit(main(sys.argv[1:]))
"""


class TestFaults:
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_killed(self, kafka, depot, when):
        """A bridge that is killed just before or after a commit loses nothing, and its successor reads nothing
        twice.
        """
        topic = kafka.topic(2)
        kafka.publish(topic, *numbers(20))
        kafka.publish(topic, *numbers(20, 20), partition=1)
        options = ("--broker", kafka.place, "--topic", topic, "--depot", depot, "--until-end")
        command = [sys.executable, "-c", KILLED, when, "bridge", "kafka", *options]
        environment = os.environ | {
            "WINDROW_PRODUCER__MAX_COMMIT_ROWS": "5",
            "WINDROW_KAFKA__PROPERTIES": '{"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}',
        }
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert completed.returncode == -signal.SIGKILL, completed.stderr
        before = rows(depot)
        assert 0 < before < 40
        assert bridge(kafka, depot, topic).committed == 40 - before
        assert payloads(depot) == numbers(40)

    def test_workers(self, kafka, depot, tmp_path):
        """Two workers of a group are killed and paused beyond their sessions: nothing is lost, nothing is twice."""
        assert rounds(kafka, depot, tmp_path / "run", ("kill", "pause")) == (0, 0)

    def test_broker_started_again(self, kafka, depot):
        """A bridge that runs waits for a broker that is started again, and continues."""
        topic = kafka.topic()
        kafka.publish(topic, "0")
        opened = KafkaBridge(settings(kafka, depot, topic))
        stats: list[KafkaStats] = []
        thread = threading.Thread(target=lambda: stats.append(opened.run(PATIENCE_SECONDS)))
        with opened:
            thread.start()
            until(lambda: rows(depot) == 1, "the first message")
            kafka.stop()
            kafka.start()
            kafka.publish(topic, "1")
            until(lambda: rows(depot) == 2, "the second message")
            opened.stop()
            thread.join(PATIENCE_SECONDS)
        assert stats[0].committed == 2

    @pytest.mark.slow
    def test_many_rounds(self, kafka, depot, tmp_path):
        """The same with acts at random, for longer."""
        acts = random.Random(1).choices(("kill", "stop", "pause"), k=30)
        assert rounds(kafka, depot, tmp_path / "run", acts) == (0, 0)

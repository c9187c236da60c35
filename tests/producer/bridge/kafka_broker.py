"""A real Kafka broker (KRaft, one process) on loopback. Ivy, which comes with pyspark, gets its jars once."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pyspark
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from filelock import FileLock

from tests.producer.bridge.broker import PATIENCE_SECONDS, free_port, until

VERSION = "4.1.1"
JARS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "windrow-tests" / f"kafka-{VERSION}"
PASSWORD = "kestrel-40-lamp"
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{guarded},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{guarded}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    user_windrow="{password}";
log.dirs={folder}/log
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.cleaner.backoff.ms=200
log.retention.check.interval.ms=500
log.initial.task.delay.ms=100
log.segment.delete.delay.ms=100
"""


def jars() -> str:
    """Return the class path of a broker; the first call gets the jars from Maven Central."""
    JARS.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{JARS}.lock"):
        if not JARS.exists():
            ivy = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
            with tempfile.TemporaryDirectory(dir=JARS.parent) as work:
                call = ["java", "-cp", ivy, "org.apache.ivy.Main", "-cache", f"{work}/cache", "-types", "jar", "bundle"]
                call += ["-dependency", "org.apache.kafka", "kafka_2.13", VERSION, "-confs", "default"]
                call += ["-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"]
                completed = subprocess.run(call, capture_output=True, text=True, check=False)
                assert completed.returncode == 0, completed.stdout[-2_000:] + completed.stderr[-2_000:]
                Path(work, "jars").rename(JARS)
    return f"{JARS}/*"


class KafkaBroker:
    """A broker with topics that tests make and fill."""

    def __init__(self, folder: Path) -> None:
        self.port, self._guarded = free_port(), free_port()
        self._folder, self._log = folder, folder / "kafka.log"
        self._settings = folder / "server.properties"
        ports = {"port": self.port, "guarded": self._guarded, "controller": free_port()}
        self._settings.write_text(SETTINGS.format(**ports, password=PASSWORD, folder=folder))
        format_ = ("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c", str(self._settings))
        subprocess.run(self._java(*format_), check=True, capture_output=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.admin = AdminClient({"bootstrap.servers": self.place, "log_level": 0})

    @property
    def place(self) -> str:
        """Return where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def guarded(self) -> str:
        """Return where it asks for the user `windrow` and the password."""
        return f"127.0.0.1:{self._guarded}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._java("kafka.Kafka", str(self._settings)), stdout=log, stderr=log)
        until(self._answers, "the broker answers")

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def lose(self, topic: str) -> None:
        """Lose all messages of a topic with one partition, and start again."""
        self.stop()
        for file in (self._folder / "log" / f"{topic}-0").iterdir():
            if file.name != "partition.metadata":
                file.unlink()
        self.start()

    def topic(self, partitions: int = 1, name: str = "", **settings: str) -> str:
        """Make a topic, and return its name."""
        name = name or f"readings-{uuid.uuid4().hex[:8]}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(PATIENCE_SECONDS)
        until(lambda: len(self.admin.list_topics(name, 5).topics[name].partitions) == partitions, "the topic is there")
        return name

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
        until(lambda: topic not in self.admin.list_topics(timeout=5).topics, "the topic is gone")
        time.sleep(0.3)

    def publish(
        self,
        topic: str,
        *values: str | bytes | None,
        partition: int = 0,
        key: str | None = "pump-1",
        stamp: int = 0,
    ) -> None:
        """Write messages to a partition, stamped with milliseconds or now, and wait until the broker has them."""
        with_all = Producer({"bootstrap.servers": self.place, "linger.ms": 5})
        for value in values:
            with_all.produce(topic, value, key, partition, timestamp=stamp)
        assert not with_all.flush(PATIENCE_SECONDS)

    def _java(self, *arguments: str) -> list[str]:
        return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jars(), *arguments]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3_000:]
        try:
            return bool(self.admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False

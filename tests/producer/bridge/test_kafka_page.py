"""The blocks of docs/howto/kafka.md, with a real broker, and Spark's own Kafka source."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.conftest import FAST_JAVA
from tests.docs.pages import ROOT
from tests.producer.bridge.kafka_broker import KafkaBroker
from tests.producer.conftest import messages
from windrow.settings.settings import Settings
from windrow.verify import verify

pytestmark = pytest.mark.kafka
PAGE = (ROOT / "docs" / "howto" / "kafka.md").read_text(encoding="utf-8")
READING = '{{"device": "p{0}", "kind": "k{0}", "at": "2026-01-31T12:00:{0:02}Z", "value": {0}}}'


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def readings(start: int, end: int) -> list[str]:
    return [READING.format(number) for number in range(start, end)]


def test_settings(tmp_path: Path) -> None:
    """The settings of the page are settings."""
    [block] = blocks("toml")
    (tmp_path / "windrow.toml").write_text(block)
    assert Settings.load(tmp_path / "windrow.toml").kafka.field_map == ["source=device", "key=device", "type=kind"]


def test_commands(kafka: KafkaBroker, windrow: Command) -> None:
    """The commands of the page read the topic: the first one until it is stopped, the other one to the end."""
    topic = kafka.topic()
    kafka.publish(topic, *readings(0, 3))
    [block] = blocks("console")
    _, *lines = block.replace("10.0.0.7:9092", kafka.place).replace("readings", topic).splitlines()
    for_ever, to_the_end = (shlex.split(line)[1:] for line in lines)
    assert windrow(*to_the_end, "--json").json()["committed"] == 3
    assert windrow(*for_ever, "--duration", "1s", "--json").json()["committed"] == 0


@pytest.mark.spark
@pytest.mark.slow
def test_spark(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Spark's Kafka source and a stream of files fill their depots exactly once, also when the job died before Spark
    noted its batch.
    """
    topic, data = kafka.topic(2), tmp_path / "data"
    (data / "arriving").mkdir(parents=True)
    job = tmp_path / "job.py"
    code = "\n".join(blocks("python")).replace("data/", f"{data}/").replace("10.0.0.7:9092", kafka.place)
    job.write_text(code.replace('"readings"', f'"{topic}"'))
    for start in (0, 3):
        kafka.publish(topic, *readings(start, start + 3))
        kafka.publish(topic, "no json", partition=1)
        (data / "arriving" / f"{start}.json").write_text("\n".join(readings(start, start + 3)))
        run(job)
        if not start:
            for file in (*data.glob("*checkpoint/commits/0"), *data.glob("*checkpoint/commits/.0.crc")):
                file.unlink()
    rows = messages(f"{data}/depot")["payload"].to_pylist()
    assert sorted(rows) == ["no json", "no json", *readings(0, 6)]
    files = messages(f"{data}/file_depot")["payload"].to_pylist()
    assert sorted(json.loads(payload)["value"] for payload in files) == [0, 1, 2, 3, 4, 5]
    for prefix, number in (("", 8), ("file_", 6)):
        report = verify(f"{data}/{prefix}depot", f"{data}/{prefix}ledger")
        assert (report.ok, report.books[0].messages_read) == (True, number)


def run(job: Path) -> None:
    """Run a job in a process of its own, whose Spark has Kafka's source."""
    command = [sys.executable, "-m", "tests.producer.bridge.spark_job", str(job)]
    environment = dict([FAST_JAVA]) | os.environ
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-4_000:]

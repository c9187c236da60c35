"""Flink as a peer: its environment, its process, and jobs over files that arrive one by one or at once.

Flink has no microbatches: a job runs until it is cancelled. So each version of the depot becomes a file of JSON, put
where a running job looks; what the job read and dropped is asked of Flink's own server. A job is cancelled after a
checkpoint, from which the next one goes on. Without a checkpoint the next one begins with the first version again.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.flink_windows import SESSION, TUMBLE, statements

WINDOWS = {"Flink `TUMBLE`, 10 s": TUMBLE, "Flink `SESSION`, gap 10 s": SESSION}
PACKAGES = ("apache-flink==2.0.0", "setuptools<81")  # Beam, which Flink needs, imports pkg_resources
ENVIRONMENT = Path(__file__).parents[2] / ".versions" / "flink"
PROGRAM = Path(__file__).parent / "flink_sql.py"
MAX_SECONDS = 120
PAUSE_SECONDS = 0.5  # more than the 200 ms between two watermarks
CHECKPOINT_INTERVAL = "500 ms"
MESSAGE = "type: STRING, event_time: BIGINT, received_at: BIGINT, payload: STRING"
CLOSED = f"source STRING, key STRING, start_seconds BIGINT, messages ARRAY<STRUCT<{MESSAGE}>>"
TIMES = "timestamp_micros(m.event_time) AS event_time, timestamp_micros(m.received_at) AS received_at"
AS_OTHERS = (
    "key",
    "timestamp_seconds(start_seconds) AS start",
    f"transform(messages, m -> struct(m.type, {TIMES}, m.payload)) AS messages",
)
TO_JSON = """
COPY (SELECT * REPLACE (epoch_us(event_time) AS event_time, epoch_us(received_at) AS received_at) FROM messages)
TO '{file}' (FORMAT json)"""


def install() -> Path:
    """Return Flink's Python, with packages of its own, which are installed the first time: that takes minutes."""
    python, installed = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    if not installed.exists():
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        installed.touch()
    return python


@dataclass(frozen=True, slots=True)
class Flink:
    """A process that runs SQL, and the address of its server."""

    process: subprocess.Popen[str]
    server: str

    def execute(self, sql: list[str], wait: bool) -> str:
        """Run statements of which the last is a job; return its id, once it has ended if that is waited for."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([sql, wait]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"Flink ended with status {self.process.wait()}")
        return answer


@contextmanager
def started(configuration: dict[str, str]) -> Iterator[Flink]:
    """Start Flink, and cancel what runs at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {"rest.port": str(port), "rest.bind-address": "127.0.0.1", "metrics.fetcher.update-interval": "100"}
    command = [install(), PROGRAM, json.dumps(own | configuration)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Flink(process, f"http://127.0.0.1:{port}")


@dataclass(frozen=True, slots=True)
class Job:
    """A job that runs, asked through Flink's server."""

    flink: Flink
    id: str

    def sum(self, name: str) -> int:
        """Return the sum of the metrics whose names end like this."""
        total = 0
        for vertex in self._ask()["vertices"]:
            place = f"/vertices/{vertex['id']}/subtasks/metrics"
            names = [metric["id"] for metric in self._ask(place) if metric["id"].endswith(name)]
            values = self._ask(f"{place}?get={quote(','.join(names))}") if names else []
            total += sum(int(value["sum"]) for value in values)
        return total

    def wait_read(self, messages: int) -> None:
        """Wait until it read so many messages, and the watermark followed."""
        _wait(lambda: self.sum("messages[1].numRecordsOut") >= messages)
        time.sleep(PAUSE_SECONDS)

    def wait_saved(self) -> None:
        """Wait for two checkpoints: with the second one the files are complete that the first one saw."""
        before = self._checkpoints()
        _wait(lambda: self._checkpoints() >= before + 2)

    def _checkpoints(self) -> int:
        return int(self._ask("/checkpoints")["counts"]["completed"])

    def _ask(self, path: str = "") -> Any:
        with urlopen(f"{self.flink.server}/jobs/{self.id}{path}") as answer:  # noqa: S310 - of this machine
            return json.load(answer)


def run(window: str, _: SparkSession, depot: Path, into: Path, files_at_once: int) -> int:
    """Batch what is new in the depot and stop; return how many rows Flink says came too late."""
    files, saved = into / "input", _newest_checkpoint(into)
    if saved is None:
        shutil.rmtree(files, ignore_errors=True)
    files.mkdir(parents=True, exist_ok=True)
    written = max((int(file.stem) for file in files.iterdir()), default=-1) + 1
    new, read = list(_versions(depot))[written:], 0
    configuration = {
        "parallelism.default": "1",  # so that files are read one after the other
        "execution.checkpointing.interval": CHECKPOINT_INTERVAL,
        "execution.checkpointing.dir": f"file://{into}/checkpoint",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        **({} if saved is None else {"execution.state-recovery.path": f"file://{saved}"}),
    }
    with started(configuration) as flink:
        sql = statements(window, f"file://{files}", f"file://{into}/batches", follow=True)
        job = Job(flink, flink.execute(sql, wait=False))
        for first in range(0, len(new), files_at_once):
            together = new[first : first + files_at_once]
            _write_json(pa.concat_tables(together), files / f"{written + first + len(together) - 1}.json")
            read += sum(part.num_rows for part in together)
            job.wait_read(read)
        job.wait_saved()
        return job.sum("numLateRecordsDropped")


def run_to_end(flink: Flink, window: str, files: Path, into: Path) -> None:
    """Batch the messages in files of JSON, into files in `into`."""
    flink.execute(statements(window, f"file://{files}", f"file://{into}", follow=False), wait=True)


def closed(spark: SparkSession, into: Path) -> DataFrame:
    """Return the rows that Flink wrote, without the files that it has not completed."""
    (into / "batches").mkdir(parents=True, exist_ok=True)
    return spark.read.schema(CLOSED).json(str(into / "batches")).selectExpr(*AS_OTHERS)


def as_json(depot: Path, files: Path) -> Path:
    """Write each version of a depot as a file of JSON in a new directory, and return that."""
    files.mkdir()
    for number, messages in enumerate(_versions(depot)):
        _write_json(messages, files / f"{number}.json")
    return files


def _write_json(messages: pa.Table, file: Path) -> None:
    """Write messages, whose times become microseconds, so that the file is there at once or not at all."""
    part = file.parent.parent / f"{file.name}.part"
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        connection.execute(TO_JSON.format(file=part))
    part.rename(file)


def _versions(depot: Path) -> Iterator[pa.Table]:
    """Yield what each version of the depot added."""
    last = DeltaTable(depot).version()
    names = [set[str](), *(set(DeltaTable(depot, version=number).file_uris()) for number in range(last + 1))]
    for before, after in pairwise(names):
        [added] = after - before
        yield pq.read_table(added)


def _newest_checkpoint(into: Path) -> Path | None:
    complete = [file.parent for file in (into / "checkpoint").glob("*/chk-*/_metadata")]
    return max(complete, key=lambda place: place.stat().st_mtime, default=None)


def _wait(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + MAX_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"Flink did not get there within {MAX_SECONDS} s")
        time.sleep(0.1)

"""A standalone Spark cluster on the loopback interface: a master and workers, to be killed one by one.

Every process of a worker, its executors and their Python too, carries the worker's mark in its environment; only
processes with a mark of this cluster are ever killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyspark

from tests.conftest import FAST_JAVA
from tests.engine.held import WORKER, Hold
from tests.engine.processes import ROOT, Driver
from tests.engine.world import World
from windrow.engine.spark.session import LOOPBACK

SPARK_HOME = Path(pyspark.__file__).parent
DAEMON = {
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": LOOPBACK,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lib'}",
}
# Both executors are there before the first task, and one that is gone is not missed for long.
APPLICATION = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "640m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
PATHS: dict[str, dict[str, Any]] = {
    "executors": {"max_driver_messages": 0},
    "driver": {"max_driver_messages": 500_000},
    "files": {"max_driver_messages": 0, "commit": "files"},
}
PATIENCE_SECONDS = 600
EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster:
    """A master and its workers, each of one core; `master` is the address that a user gives to Spark."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._mark, self._started = directory, uuid4().hex, 0
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.master, self.workers = "", list[str]()

    def start(self) -> None:
        """Start the master."""
        log = self._start("master", "master.Master", "--port", "0")
        self.master = find_in_log(log, r"Starting Spark master at (spark://\S+)")

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a driver that runs on two workers of this cluster."""
        options = [word for name, value in APPLICATION.items() for word in ("--conf", f"{name}={value}")]
        return DAEMON | {"PYSPARK_SUBMIT_ARGS": " ".join([*options, "pyspark-shell"])}

    def fill(self, count: int = 2) -> None:
        """Start workers until there are so many."""
        new = [self._start_worker() for _ in range(count - len(self.workers))]
        for log in new:
            find_in_log(log, r"(Successfully registered with master)")

    def kill_worker(self, name: str) -> None:
        """End a worker with its executors at one moment, as when its machine goes."""
        self.workers.remove(name)
        self._kill(lambda process: self._of(name, process))

    def kill_executor(self, name: str) -> None:
        """End the executor of a worker, which stays."""
        [executor] = self.executors(name)
        os.kill(executor, signal.SIGKILL)

    def executors(self, name: str) -> list[int]:
        """Return the processes of a worker's executors."""
        marked = [process for process in processes() if self._of(name, process)]
        return [process for process in marked if EXECUTOR in read(process, "cmdline")]

    def close(self) -> None:
        """End all that belongs to it."""
        self._kill(lambda process: self._mark in read(process, "environ"))
        for daemon in self._daemons:
            daemon.wait(PATIENCE_SECONDS)

    def all_executors(self) -> list[int]:
        """Return the processes of the executors of all workers."""
        return [executor for worker in self.workers for executor in self.executors(worker)]

    def _of(self, name: str, process: int) -> bool:
        return f"{WORKER}={name}" in read(process, "environ").split("\0")

    def _start_worker(self) -> Path:
        name = f"{self._mark}-{self._started}"
        self.workers.append(name)
        sizes = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._directory / "work"))
        return self._start(name, "worker.Worker", "--port", "0", *sizes, self.master)

    def _start(self, name: str, kind: str, *arguments: str) -> Path:
        self._started += 1
        log = self._directory / f"{name}.log"
        command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", "--host", LOOPBACK]
        environment = dict([FAST_JAVA]) | os.environ | DAEMON | {WORKER: name, "CLUSTER": self._mark}
        environment |= {"SPARK_LOCAL_DIRS": str(self._directory / "local")}
        with log.open("wb") as output:
            daemon = subprocess.Popen(
                [*map(str, command), "--webui-port", "0", *arguments],
                cwd=self._directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return log

    @staticmethod
    def _kill(ours: Callable[[int], bool]) -> None:
        """Kill processes until there are none: one may have started another just before it died."""
        while left := [process for process in processes() if ours(process)]:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


class Applications:
    """The application at work on a cluster, and the runs that it is told to do; a killed one has a successor."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._driver: Driver | None = None

    def run(
        self, world: World, path: str, hold: tuple[str, Hold] | None = None, wait: str | None = None, **more: Any
    ) -> None:
        """Begin a run of a world."""
        if self._driver is None:
            self._driver = Driver("application", self._cluster.master, environment=self._cluster.environment)
            self._driver.hear("ready")
        settings = {"depot": world.depot, "ledger": world.ledger, "engine": "spark", "idle_timeout": "never"}
        order = {
            "settings": settings | PATHS[path] | more,
            "hold": hold and (hold[0], asdict(hold[1])),
            "wait": wait,
            "executors": len(self._cluster.workers),
        }
        self._driver.go_on(json.dumps(order))

    def hear(self, word: str) -> None:
        """Wait until it says a word."""
        assert self._driver is not None
        self._driver.hear(word)

    def go_on(self) -> None:
        """Let it go on."""
        assert self._driver is not None
        self._driver.go_on()

    def close(self) -> None:
        """Kill it, if there is one."""
        if self._driver is not None:
            self._driver.close()
        self._driver = None


@contextmanager
def running(directory: Path) -> Iterator[Cluster]:
    """Start a cluster, and leave nothing of it behind."""
    cluster = Cluster(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def processes() -> list[int]:
    """Return the ids of all processes, the oldest first."""
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def send(processes: Iterable[int], number: int) -> None:
    """Send a signal to processes."""
    for process in processes:
        os.kill(process, number)


def read(process: int, file: str) -> str:
    """Return what /proc says of a process; nothing when it has ended or is not ours to see."""
    try:
        return Path(f"/proc/{process}/{file}").read_text(errors="replace")
    except OSError:
        return ""


def find_in_log(log: Path, pattern: str) -> str:
    """Wait until a log has a line, and return the part in parentheses."""
    match = until(lambda: re.search(pattern, log.read_text(errors="replace")), f"{pattern!r} in {log}")
    return str(match[1])


def until(condition: Callable[[], Any], what: str, pause: float = 0.02) -> Any:
    """Wait until a condition returns something true, and return that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(pause)
    return value

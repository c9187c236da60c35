"""Driver processes as a test sees them: told what to do, heard, sent signals, and left nowhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.conftest import FAST_JAVA
from tests.engine.world import World

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 600


class Driver:
    """A program of `tests/engine` in a process of its own, with the JVM that it may start."""

    def __init__(self, program: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.engine.{program}", *arguments],
            cwd=ROOT,
            env=dict([FAST_JAVA]) | os.environ | (environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def hear(self, word: str) -> None:
        """Wait until the driver says a word, whatever else it prints."""
        assert any(line.strip() == word for line in self._process.stdout), f"the driver ended before it was {word}"

    def start(self) -> None:
        """Let the driver begin."""
        self.hear("ready")
        self.go_on()

    def go_on(self, line: str = "") -> None:
        """Give the driver a line."""
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def send(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the process and its JVM at one moment, as when their machine goes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def words(self) -> Iterator[str]:
        """Yield what it says until it ends."""
        for line in self._process.stdout:
            yield line.strip()

    def words_until(self, start: str, times: int) -> list[str]:
        """Return what it says until it has said so many words that begin like that, or ended."""
        said = list[str]()
        if times:
            for word in self.words():
                said.append(word)
                times -= word.startswith(start)
                if not times:
                    break
        return said

    def running(self) -> bool:
        """Tell whether it has not ended yet."""
        return self._process.poll() is None

    def status(self) -> int:
        """Wait for the end, and return the exit status; the signal's number, negative, if one ended it."""
        return self._process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        """End the process, however far it is."""
        with self._process.stdin, self._process.stdout:
            self.kill()
            self._process.wait(PATIENCE_SECONDS)


@contextmanager
def driver_of(orders: Sequence[Mapping[str, Any]]) -> Iterator[Driver]:
    """Start one driver of several orders, on one session of Spark."""
    driver = Driver("driver", json.dumps(orders))
    try:
        yield driver
    finally:
        driver.close()


@contextmanager
def drivers(world: World, *engines: str, **order: Any) -> Iterator[list[Driver]]:
    """Start drivers of a world, which wait for `start`, and leave none behind."""
    common_order = {"depot": world.depot, "ledger": world.ledger, "idle_timeout": "never"} | dict(world.order) | order
    started = [Driver("driver", json.dumps(common_order | {"engine": engine})) for engine in engines]
    try:
        yield started
    finally:
        for driver in started:
            driver.close()

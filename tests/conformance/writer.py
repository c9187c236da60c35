"""The process of a writer, which is started again and again, and killed with all of its children at one moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.system import System

MAX_SECONDS = 1800


class WriterError(Exception):
    """The writer failed or did not end."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long an undisturbed run took: until its first new file below output and checkpoint, and then to its end."""

    first_file_seconds: float
    rest_seconds: float


@dataclass(frozen=True, slots=True)
class Writer:
    """A system on the directories of one trial: `depot`, `output`, `checkpoint` and `scratch` below one directory."""

    system: System
    directory: Path

    def __post_init__(self) -> None:
        for place in (self.depot, self.output, self.checkpoint, self.directory / "scratch"):
            place.mkdir(parents=True, exist_ok=True)

    @property
    def depot(self) -> Path:
        """The input."""
        return self.directory / "depot"

    @property
    def output(self) -> Path:
        """Where the writer puts its tables."""
        return self.directory / "output"

    @property
    def checkpoint(self) -> Path:
        """Where the writer may keep what it needs to go on."""
        return self.directory / "checkpoint"

    def run(self) -> Timing:
        """Run to the end. Raises WriterError if it fails or does not end."""
        before, started = self._files(), time.monotonic()
        with self._process() as process:
            _wait(process, lambda: self._files() > before, interval_seconds=0.05)
            first = time.monotonic()
            try:
                status = process.wait(MAX_SECONDS)
            except subprocess.TimeoutExpired:
                raise WriterError(f"it did not end within {MAX_SECONDS} s; see {self._log}") from None
        if status != 0:
            raise WriterError(f"it ended with status {status}; see {self._log}")
        return Timing(first - started, time.monotonic() - first)

    def run_killed_within(self, max_seconds: float, chance: random.Random) -> bool:
        """Run, and kill it at a random moment after its first new file; return whether it was still running."""
        before = self._files()
        with self._process() as process:
            _wait(process, lambda: self._files() > before, interval_seconds=0.05)
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, max_seconds))
            return process.poll() is None

    def run_killed_at_commit(self, version: int) -> bool:
        """Run, and kill it as soon as its table has a version; return whether it was still running."""
        entry = self.output / self.system.batches.table / "_delta_log" / f"{version:020}.json"
        with self._process() as process:
            _wait(process, entry.exists, interval_seconds=0.001)
            return process.poll() is None

    @contextmanager
    def _process(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start the writer, and end it by SIGKILL, with its children."""
        process = self._start()
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        scratch = str(self.directory / "scratch")
        environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])),
            "TMPDIR": scratch,
            "SPARK_LOCAL_DIRS": scratch,
        }
        command = self.system.command_for(self.depot, self.output, self.checkpoint)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=scratch,
                env=os.environ | environment | self.system.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _files(self) -> int:
        return sum(len(names) for place in (self.output, self.checkpoint) for _, _, names in os.walk(place))

    @property
    def _log(self) -> Path:
        return self.directory / "writer.log"


def _wait(process: subprocess.Popen[bytes], happened: Callable[[], bool], interval_seconds: float) -> None:
    end = time.monotonic() + MAX_SECONDS
    while process.poll() is None and not happened() and time.monotonic() < end:
        time.sleep(interval_seconds)

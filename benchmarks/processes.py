"""A command as a process of its own: how long it takes, how much memory it holds at most, what it starts.

Memory and programs are those of the process and all below it, read from /proc ten times a second, so these need Linux.
The memory of a process is its high-water mark (`VmHWM`), which misses no peak but that of the last moment; for the
process itself the kernel's count at its end makes up for that, where it exceeds our own memory, in which the process
began. Marks of processes that live at the same time are added, so a sum is rather too high than too low. One counts
when it is found a second time: between its start and its program it shows the memory of its parent as its own, and so
a JVM whose Hadoop starts a process for each file was counted twice.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PAUSE = 0.1  # seconds
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command took: wall time, most bytes of resident memory, the names of the programs it ran.

    `own_peak_bytes` is the memory of the process itself, without what it started, and `driver_peak_bytes` that of the
    process and those that it started itself: of a driver of Spark its Python and its JVM, without executors.
    """

    seconds: float
    peak_bytes: int
    own_peak_bytes: int
    driver_peak_bytes: int
    programs: frozenset[str]


def windrow(*arguments: object) -> list[str]:
    """Return the command line of a Windrow command."""
    return [sys.executable, "-m", "windrow", *map(str, arguments)]


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command to its end, in a directory without settings. Raises RuntimeError with what it said if it fails."""
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=here, stdout=output, stderr=subprocess.STDOUT, env=os.environ | (environment or {})
        )
        watch = Watch(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        watch.stop()
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{command} ended with {process.returncode}: {output.read().decode()}")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # what a process was before it became the command counts
    peak = used.ru_maxrss * 1024 if used.ru_maxrss > own else 0
    peaks = max(watch.peak.byte_count, peak), watch.own_peak.byte_count, watch.driver_peak.byte_count
    return Finished(seconds, *peaks, frozenset(watch.programs))


class Watch:
    """Looks at a process and those below it until it is told to stop."""

    def __init__(self, process: int) -> None:
        """Begin to look."""
        self.peak, self.own_peak, self.driver_peak = Peak(), Peak(), Peak()
        self.programs: set[str] = set()
        self._process, self._over = process, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(PAUSE):
            generations = family(self._process)
            statuses = {process: status(process) for process in generations}
            for peak, last in ((self.peak, len(statuses)), (self.own_peak, 0), (self.driver_peak, 1)):
                peak.look({process: statuses[process][1] for process, at in generations.items() if at <= last})
            self.programs |= {name for name, byte_count in statuses.values() if byte_count}


class Peak:
    """The most memory that processes held together, from looks at them."""

    def __init__(self) -> None:
        """Begin without any."""
        self.byte_count = 0
        self._before: frozenset[int] = frozenset()

    def look(self, bytes_by_process: Mapping[int, int]) -> None:
        """Take in what each process holds now, in bytes."""
        self.byte_count = max(
            self.byte_count,
            sum(byte_count for process, byte_count in bytes_by_process.items() if process in self._before),
        )
        self._before = frozenset(bytes_by_process)


def family(process: int) -> dict[int, int]:
    """Return a process and all that it started, however indirectly, as far as they live; with their generation."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name, which comes second, may hold anything, parentheses too; the parent is the second after it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    generations, youngest, generation = {process: 0}, [process], 0
    while youngest:
        youngest, generation = [child for parent in youngest for child in children.get(parent, [])], generation + 1
        generations |= dict.fromkeys(youngest, generation)
    return generations


def status(process: int) -> tuple[str, int]:
    """Return the name of a process and its high-water mark in bytes, nothing when it has ended."""
    try:
        lines = (PROC / str(process) / "status").read_text().splitlines()
    except OSError:
        return "", 0
    fields = dict(line.split(":", 1) for line in lines)
    return fields["Name"].strip(), int(fields.get("VmHWM", "0 kB").split()[0]) * 1024

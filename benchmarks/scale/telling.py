"""What a scenario says while it runs: lines on standard output, and one for each microbatch."""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession

from benchmarks.scale.memory import MIB, Heap, forget_peak, resident
from windrow.model.results import CommittedMicrobatch


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class ScenarioLog:
    """Tells of each microbatch how long it took and what the driver held; remembers the most, and the ways gone."""

    def __init__(self, spark: SparkSession) -> None:
        self._heap = Heap(spark)
        self.python_peak = self.heap_peak = 0
        self.paths = set[str]()
        self.begin()

    def begin(self) -> None:
        """Count time and memory from now on."""
        self._begin = time.perf_counter()
        forget_peak()
        self._heap.forget_peak()

    def committed(self, microbatch: CommittedMicrobatch) -> None:
        """Tell of a microbatch."""
        self.paths |= {microbatch.processed_on} if microbatch.kind == "data" else set()
        self.tell(
            f"microbatch {microbatch.microbatch} ({microbatch.kind}, {microbatch.processed_on}, "
            f"attempt {microbatch.attempt}): {microbatch.message_count:,} messages, {microbatch.opened:,} opened, "
            f"{microbatch.closed:,} closed, {microbatch.rejected:,} rejected"
        )

    def tell(self, what: str) -> None:
        """Tell how long something took since the last time, and what the driver held meanwhile."""
        seconds, python, heap = time.perf_counter() - self._begin, resident("VmHWM"), self._heap.peak()
        self.python_peak, self.heap_peak = max(self.python_peak, python), max(self.heap_peak, heap)
        say(
            f"{what}; {seconds:.1f} s, Python {resident() // MIB:,} MiB (peak {python // MIB:,}), "
            f"JVM {self._heap.used() // MIB:,} (peak {heap // MIB:,} of {self._heap.most // MIB:,})"
        )
        self.begin()

    def tell_peaks(self) -> None:
        """Tell the most that the driver held, and what of the JVM's heap cannot be freed."""
        say(
            f"driver: Python at most {self.python_peak // MIB:,} MiB, JVM at most {self.heap_peak // MIB:,} of "
            f"{self._heap.most // MIB:,} MiB, {self._heap.held() // MIB:,} when all is freed"
        )

"""What the driver holds: resident memory of its Python, and the heap of its JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

MIB = 2**20
OWN = Path("/proc/self")


def resident(name: str = "VmRSS") -> int:
    """Return the resident memory of this process in bytes, or its high-water mark (`VmHWM`)."""
    lines = (OWN / "status").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Let the high-water mark of this process begin anew."""
    (OWN / "clear_refs").write_text("5", encoding="utf-8")


class Heap:
    """The heap of the driver's JVM in bytes. What is used includes what the collector has yet to free."""

    def __init__(self, spark: SparkSession) -> None:
        java: Any = spark._jvm.java.lang
        self._runtime = java.Runtime.getRuntime()
        pools = java.management.ManagementFactory.getMemoryPoolMXBeans()
        self._pools = [pool for pool in pools if pool.getType().name() == "HEAP"]
        self.most = int(self._runtime.maxMemory())

    def used(self) -> int:
        """Return what is used now."""
        return int(self._runtime.totalMemory()) - int(self._runtime.freeMemory())

    def held(self) -> int:
        """Return what is used when all was freed that can be."""
        self._runtime.gc()
        return self.used()

    def peak(self) -> int:
        """Return the most that was used since `forget_peak`, each generation by itself."""
        return sum(int(pool.getPeakUsage().getUsed()) for pool in self._pools)

    def forget_peak(self) -> None:
        """Let the peaks begin anew."""
        for pool in self._pools:
            pool.resetPeakUsage()

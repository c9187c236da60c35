"""How much memory this process has, on which defaults depend."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of a container: cgroup 2, and 1
MAX_DRIVER_MESSAGES = 1_000_000  # the executors take over where they are faster
# A message takes about a kilobyte while it is processed. The rest is for Spark's JVM and everything else.
BYTES_OF_DRIVER_MESSAGE = 4_000


def driver_messages(limits: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many new messages a driver with this much memory processes itself."""
    return min(MAX_DRIVER_MESSAGES, memory_bytes(limits) // BYTES_OF_DRIVER_MESSAGE)


def memory_bytes(limits: Path) -> int:
    """Return the memory of the machine, or of the container if that has less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or no limit: `max`
            sizes.append(int((limits / name).read_text()))
    return min(sizes)

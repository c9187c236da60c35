"""The machine's clock. The only module that reads it; commands, jobs and `windrow.run` hand it to what needs time."""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, SimpleQueue


class WallClock:
    """The wall clock with a stop that can be asked for from a signal handler or another thread.

    A signal may come while the same thread begins or ends a wait, and holds the lock of an Event: to set that would
    wait for ever. A SimpleQueue can be put to at any moment.
    """

    def __init__(self) -> None:
        """Start running."""
        self._stopped = False
        self._woken: SimpleQueue[None] = SimpleQueue()

    def __reduce__(self) -> tuple[type[WallClock], tuple[()]]:
        """Give another process a clock of its own."""
        return WallClock, ()

    def now(self) -> int:
        """Return microseconds since the epoch, UTC."""
        return time.time_ns() // 1_000

    def elapsed(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.perf_counter()

    def wait(self, microseconds: int) -> bool:
        """Wait; return True at once when a stop was asked for."""
        if microseconds and not self._stopped:
            with suppress(Empty):
                self._woken.get(timeout=microseconds / 1_000_000)
        return self._stopped

    def stop(self) -> None:
        """Ask for a stop: what waits returns, the microbatch at work finishes."""
        self._stopped = True
        self._woken.put(None)

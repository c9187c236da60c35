"""The machine's clock. Only this module reads it; commands, jobs and `windrow.run` pass it on as an argument."""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, SimpleQueue


class WallClock:
    """The wall clock, with a stop that a signal handler or another thread can request.

    A signal may arrive while the same thread enters or leaves a wait. With a `threading.Event` the handler would then
    wait forever for the lock that its own thread holds. A `SimpleQueue` accepts an item at any moment.
    """

    def __init__(self) -> None:
        """Start running."""
        self._stopped = False
        self._woken: SimpleQueue[None] = SimpleQueue()

    def __reduce__(self) -> tuple[type[WallClock], tuple[()]]:
        """Let another process create its own clock."""
        return WallClock, ()

    def now(self) -> int:
        """Return microseconds since the epoch, UTC."""
        return time.time_ns() // 1_000

    def elapsed(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.perf_counter()

    def wait(self, microseconds: int) -> bool:
        """Wait; return True, without waiting any longer, once a stop is requested."""
        if microseconds and not self._stopped:
            with suppress(Empty):
                self._woken.get(timeout=microseconds / 1_000_000)
        return self._stopped

    def stop(self) -> None:
        """Request a stop: a wait returns at once, a microbatch in progress finishes."""
        self._stopped = True
        self._woken.put(None)

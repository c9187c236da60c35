"""A clock that tests set and move."""

from __future__ import annotations

NOW = 1_700_000_000_000_000  # microseconds, in November 2023


class ManualClock:
    """A `windrow.model.clock.Clock` that only moves when a test or a wait moves it; times are in microseconds.

    `waits` lists all waits. A stop is requested during wait number `stops_after`, counted from 1.
    """

    def __init__(self, now: int = NOW, stops_after: int | None = None) -> None:
        self.waits: list[int] = []
        self._now, self._stopped, self._stops_after = now, False, stops_after

    def now(self) -> int:
        """Return the current time."""
        return self._now

    def elapsed(self) -> float:
        """Return the current time in seconds."""
        return self._now / 1_000_000

    def wait(self, microseconds: int) -> bool:
        """Move the clock at once; return whether a stop was requested."""
        if microseconds:
            self.waits.append(microseconds)
            self._now += microseconds
            if len(self.waits) == self._stops_after:
                self.stop()
        return self._stopped

    def set(self, now: int) -> None:
        """Set the time; it may go backwards."""
        self._now = now

    def advance(self, microseconds: int) -> None:
        """Move the clock forward."""
        self._now += microseconds

    def stop_after(self, waits: int) -> None:
        """Request a stop during wait number `waits`, counted from 1."""
        self._stops_after = waits

    def stop(self) -> None:
        """Request a stop."""
        self._stopped = True

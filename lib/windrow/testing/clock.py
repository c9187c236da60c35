"""A clock that tests move by hand."""

from __future__ import annotations

NOW = 1_700_000_000_000_000  # microseconds, in November 2023


class ManualClock:
    """A `windrow.model.clock.Clock` that stands still until a test, or a wait, moves it; times in microseconds.

    `waits` lists what was waited for. `stops_after` asks for a stop during that wait, counted from 1.
    """

    def __init__(self, now: int = NOW, stops_after: int | None = None) -> None:
        self.waits: list[int] = []
        self._now, self._stopped, self._stops_after = now, False, stops_after

    def now(self) -> int:
        """Return the time that was set."""
        return self._now

    def elapsed(self) -> float:
        """Return the time that was set, in seconds."""
        return self._now / 1_000_000

    def wait(self, microseconds: int) -> bool:
        """Move on at once; return whether a stop was asked for."""
        if microseconds:
            self.waits.append(microseconds)
            self._now += microseconds
            if len(self.waits) == self._stops_after:
                self.stop()
        return self._stopped

    def set(self, now: int) -> None:
        """Set the time, also backwards."""
        self._now = now

    def advance(self, microseconds: int) -> None:
        """Move on."""
        self._now += microseconds

    def stop_after(self, waits: int) -> None:
        """Ask for a stop during a wait, counted from 1."""
        self._stops_after = waits

    def stop(self) -> None:
        """Ask for a stop."""
        self._stopped = True

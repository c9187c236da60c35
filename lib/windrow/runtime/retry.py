"""Retry what failed, after a pause that doubles each time, up to a limit of attempts."""

from __future__ import annotations

from collections.abc import Callable

from windrow.errors import RetriesExhaustedError, WindrowError, first_line
from windrow.model.clock import Clock

FIRST_BACKOFF = 500_000
MAX_BACKOFF = 30_000_000


class Retry:
    """The attempts at one microbatch; `retrying` is called before each further one."""

    def __init__(self, most: int, clock: Clock, retrying: Callable[[Exception, int], None]) -> None:
        """Begin with the first attempt; at most `most` others follow."""
        self._most, self._clock, self._retrying = most, clock, retrying
        self.attempt = 1

    def back_off(self, error: Exception) -> None:
        """Wait before the next attempt.

        Raises `error` if it would recur or a stop is requested meanwhile, RetriesExhaustedError after the last attempt.
        """
        # guard: not-retryable
        if not getattr(error, "retryable", True):
            raise error
        # guard: retries-limit
        if self.attempt > self._most:
            hint = f"{error.hint} " if isinstance(error, WindrowError) and error.hint else ""
            raise RetriesExhaustedError(
                f"the microbatch failed {self.attempt} times, the last time with: {first_line(error)}",
                f"{hint}Earlier commits stay; the next run continues from there.",
            ) from error
        self._retrying(error, self.attempt)
        pause = min(FIRST_BACKOFF * 2 ** (self.attempt - 1), MAX_BACKOFF)
        self.attempt += 1
        if self._clock.wait(pause):
            raise error

    def __getstate__(self) -> dict[str, object]:
        """Drop what belongs to this process."""
        return self.__dict__ | {"_retrying": do_nothing}


def do_nothing(*_: object) -> None:
    """Do nothing."""

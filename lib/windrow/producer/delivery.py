"""A delivery: the future of a sent message, which ends with its acknowledgement or an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass

LOG = logging.getLogger("windrow.producer")


@dataclass(frozen=True, slots=True)
class Ack:
    """A message is in the depot: the depot version that holds it, and its number among its producer's, from 1.

    For `send_many` it is the number of the last message.
    """

    version: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a producer in the depot: the number of its last message (0 for none), and its last mark."""

    sequence: int
    mark: int | None


class Delivery(Future[Ack]):
    """The future of an acknowledgement. It cannot be cancelled: a sent message is delivered or fails with an error.

    `waiting` is called once, when a thread begins to wait: if all senders wait, none is left to send more.
    """

    def __init__(self, waiting: Callable[[], None]) -> None:
        super().__init__()
        self._waiting: Callable[[], None] | None = waiting
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Ack:
        """Return the acknowledgement, or raise the message's error; TimeoutError after `timeout` seconds."""
        self.awaited()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the message's error, None if it is acknowledged; raise TimeoutError after `timeout` seconds."""
        self.awaited()
        return super().exception(timeout)

    def awaited(self) -> None:
        """Note that a thread waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not self.done():
            waiting()

    def settle(self, outcome: Ack | Exception) -> None:
        """Complete the future, unless it is complete. Errors of callbacks are logged, even those that end a thread."""
        self._waiting = None  # it refers to the batch, which would stay in memory as long as the future
        try:
            if isinstance(outcome, Ack):
                self.set_result(outcome)
            else:
                self.set_exception(outcome)
        except InvalidStateError:
            return
        except BaseException:
            LOG.exception("a callback of a message raised")

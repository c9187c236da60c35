"""A delivery: the future of a message that was sent, which ends with its acknowledgement or an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass

LOG = logging.getLogger("windrow.producer")


@dataclass(frozen=True, slots=True)
class Ack:
    """A message is in the depot: the version that holds it, and its number among all of its producer, from 1.

    For what was sent by `send_many` it is the number of the last one.
    """

    version: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Position:
    """How far a producer has come in the depot: the number of its last message, 0 for none, and its last mark."""

    sequence: int
    mark: int | None


class Delivery(Future[Ack]):
    """The future of an acknowledgement. It cannot be cancelled: what was sent is delivered, or fails with an error.

    `waiting` is called once, when somebody begins to wait: where all do, nobody is left to send more.
    """

    def __init__(self, waiting: Callable[[], None]) -> None:
        super().__init__()
        self._waiting: Callable[[], None] | None = waiting
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Ack:
        """Return the acknowledgement, or raise what became of the message; TimeoutError after `timeout` seconds."""
        self.awaited()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the message, None when it is acknowledged; TimeoutError after `timeout` seconds."""
        self.awaited()
        return super().exception(timeout)

    def awaited(self) -> None:
        """Note that somebody waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not self.done():
            waiting()

    def settle(self, outcome: Ack | Exception) -> None:
        """End, unless it has ended. Whatever a callback raises is its own affair, also what ends a thread."""
        self._waiting = None  # it knows the batch, which whoever keeps the future would keep
        try:
            if isinstance(outcome, Ack):
                self.set_result(outcome)
            else:
                self.set_exception(outcome)
        except InvalidStateError:
            return
        except BaseException:
            LOG.exception("a callback of a message raised")

"""What producers of messages and of chunks have in common: a queue of a committer, and its life."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Self

import pyarrow as pa

from windrow.errors import MessageRefused, ProducerClosed, ProducerInUse
from windrow.producer.delivery import Ack, Delivery, Position
from windrow.producer.metrics import Metrics
from windrow.producer.registry import REGISTRY
from windrow.producer.row import Sent
from windrow.producer.state import State
from windrow.settings.settings import ProducerPart, part

SECOND = 1_000_000


class Sender:
    """Sends rows into a depot: held for a moment, committed together, acknowledged one by one.

    Threads may share it, and several of one name and the same settings share one queue. A process that was forked needs
    its own: a copy refuses.
    """

    def __init__(self, depot: str, name: str, schema: pa.Schema, keep: str, settings: dict[str, Any]) -> None:
        """Open the depot, or make it. Raises SettingsError, TableRefused, TableUnreadable, ProducerInUse."""
        self._name = name
        self._chosen = part(ProducerPart, settings)
        self._process = os.getpid()
        self._committer, self._lane = REGISTRY.join(depot, name, self._chosen, schema, keep)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def state(self) -> State:
        """Return whether it takes messages."""
        return State.CLOSED if self._closed and self._lane.state is State.OPEN else self._lane.state

    def flush(self, timeout: float | None = None) -> bool:
        """Commit what was sent so far now, and wait for it; tell whether that is done before `timeout` seconds."""
        self._require_usable(taking=False)
        return self._lane.flush(timeout)

    def last_sequence(self) -> int:
        """Return the number of the last row of this name that is in the depot, 0 for none: where to go on after."""
        return self.position().sequence

    def position(self) -> Position:
        """Return the number of the last row of this name that is in the depot, and the last mark, of one moment."""
        return self._committer.recorded(self._name)

    def metrics(self) -> Metrics:
        """Return what it counts."""
        return self._lane.metrics()

    def close(self, timeout: float | None = None) -> None:
        """Take no more, commit what is held, and fail what is not committed after `timeout` seconds.

        Without one it waits as long as `delivery_timeout`. To close it again does nothing.
        """
        if self._closed or os.getpid() != self._process:
            return
        self._require_usable(taking=False)
        self._closed = True
        patience = self._chosen.delivery_timeout / SECOND if timeout is None else timeout
        REGISTRY.leave(self._committer, self._lane, patience)

    def _send(self, ready: Sent) -> Delivery:
        self._require_usable()
        return self._lane.send(ready, may_wait=not self._committer.is_own_thread())

    async def _send_async(self, ready: Sent) -> Ack:
        """Send, and wait for the acknowledgement without holding up the event loop."""
        self._require_usable()
        delivery = self._lane.send_at_once(ready)
        if delivery is None:
            delivery = await asyncio.get_running_loop().run_in_executor(None, self._lane.send, ready)
        delivery.awaited()
        return await asyncio.wrap_future(delivery)

    def _require_usable(self, taking: bool = True) -> None:
        # guard: forked-producer
        if os.getpid() != self._process:
            raise ProducerInUse(
                f"this producer {self._name!r} is a copy in a forked process", "Open one of its own there."
            )
        if self._committer.is_own_thread() and not taking:
            raise ProducerInUse("a callback of a message cannot flush or close", "Do it in a thread of its own.")
        if taking and self._closed:
            raise ProducerClosed(f"producer {self._name!r} is closed", "Open another one.")


def required_name(what: str, name: object) -> str:
    """Return the name of a producer or a raw source. Raises MessageRefused."""
    if not isinstance(name, str) or not name or not _is_unicode(name):
        raise MessageRefused(f"{what} = {name!a} is no name", "Give it one that stays the same.")
    return name


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True

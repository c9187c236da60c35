"""The common base of `Producer` and `RawProducer`: joining a queue, flushing, closing."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Self

import pyarrow as pa

from windrow.errors import BufferFullError, InvalidMessageError, ProducerClosedError, ProducerInUseError
from windrow.model.durations import SECOND
from windrow.producer.buffer import Buffer
from windrow.producer.committer import REGISTRY
from windrow.producer.delivery import Ack, Delivery, Position
from windrow.producer.metrics import ProducerMetrics
from windrow.producer.queue import ProducerState
from windrow.producer.row import OutgoingRow
from windrow.settings.producer import ProducerOptions
from windrow.settings.settings import part


class Sender:
    """Sends rows to a depot: holds them briefly, commits them together, and acknowledges them one by one.

    Threads may share a sender; senders with the same name and settings share one queue. A forked process needs its own
    sender: a copy raises ProducerInUseError.
    """

    def __init__(
        self, depot: str, name: str, schema: pa.Schema, retention: str, settings: dict[str, Any], buffer: Buffer | None
    ) -> None:
        """Open the depot or create it.

        Raises SettingsError, IncompatibleTableError, TableUnreadableError, ProducerInUseError.
        """
        self._name = name
        room = {} if buffer is None else {"max_buffer_bytes": buffer.size_bytes}
        self._chosen = part(ProducerOptions, settings | room)
        self._process = os.getpid()
        self._committer, self._queue = REGISTRY.join(depot, name, self._chosen, schema, retention, buffer)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def state(self) -> ProducerState:
        """Return the state: only an open producer takes messages."""
        return ProducerState.CLOSED if self._closed and self._queue.state is ProducerState.OPEN else self._queue.state

    def flush(self, timeout: float | None = None) -> bool:
        """Commit everything sent so far without lingering, and wait for it; return False after `timeout` seconds."""
        self._require_usable(taking=False)
        return self._queue.flush(timeout)

    def last_sequence(self) -> int:
        """Return the number of the last row in the depot under this name, 0 if there is none: continue after it."""
        return self.position().sequence

    def position(self) -> Position:
        """Return the last row's number in the depot under this name, the last mark and fingerprint, read together."""
        return self._committer.recorded_position(self._name)

    def metrics(self) -> ProducerMetrics:
        """Return the metrics."""
        return self._queue.metrics()

    def close(self, timeout: float | None = None) -> None:
        """Refuse new rows, commit held ones, and fail what is not committed after `timeout` seconds.

        The default is `delivery_timeout`. Closing it again does nothing.
        """
        if self._closed or os.getpid() != self._process:
            return
        self._require_usable(taking=False)
        self._closed = True
        patience = self._chosen.delivery_timeout / SECOND if timeout is None else timeout
        REGISTRY.leave(self._committer, self._queue, patience)

    def _send(self, ready: OutgoingRow) -> Delivery:
        self._require_usable()
        return self._queue.send(ready, may_wait=not self._committer.is_own_thread())

    async def _send_async(self, ready: OutgoingRow) -> Ack:
        """Send, and await the acknowledgement without blocking the event loop."""
        self._require_usable()
        try:
            delivery = self._queue.send(ready, may_wait=False)
        except BufferFullError:  # another thread waits for room, or raises as `block_timeout` says
            delivery = await asyncio.get_running_loop().run_in_executor(None, self._queue.send, ready)
        delivery.note_waiter()
        return await asyncio.wrap_future(delivery)

    def _require_usable(self, taking: bool = True) -> None:
        # guard: forked-producer
        if os.getpid() != self._process:
            raise ProducerInUseError(
                f"producer {self._name!r} is a copy in a forked process", "Open a new producer in that process."
            )
        if self._committer.is_own_thread() and not taking:
            raise ProducerInUseError("a callback of a message cannot flush or close", "Do it in another thread.")
        if taking and self._closed:
            raise ProducerClosedError(f"producer {self._name!r} is closed", "Open another one.")


def required_name(what: str, name: object) -> str:
    """Return the name of a producer or a raw source. Raises InvalidMessageError."""
    if not isinstance(name, str) or not name or name.encode(errors="ignore").decode() != name:
        raise InvalidMessageError(f"{what} = {name!a} is not a valid name", "Use a fixed, non-empty text.")
    return name

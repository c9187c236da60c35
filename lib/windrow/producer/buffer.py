"""The bound on the bytes of messages that are held or in flight, for one producer id or for several that share it.

Senders that find no room wait in order, whichever queue they send to. All of this happens under the committer's lock.
"""

from __future__ import annotations

from collections import deque

from windrow.errors import ProducerInUseError


class Buffer:
    """Room for `size_bytes` bytes that producers with several ids of one depot may share: pass it to each of them."""

    def __init__(self, size_bytes: int) -> None:
        """Begin empty.

        Raises:
            ValueError: The size is not positive.

        Example:
            >>> room = windrow.Buffer(16_777_216)
            >>> first, second = (windrow.Producer("data/depot", name, buffer=room) for name in ("line-1", "line-2"))
            >>> first.close(), second.close()
            (None, None)
        """
        if size_bytes <= 0:
            raise ValueError(f"a buffer of {size_bytes} bytes has no room")
        self.size_bytes = size_bytes
        self._reserved = 0
        self._tickets: deque[object] = deque()
        self._lock: object = None  # of the committer whose queues use it
        self._queues = 0

    @property
    def available_bytes(self) -> int:
        """Return how many bytes are free."""
        return self.size_bytes - self._reserved

    @property
    def has_waiting(self) -> bool:
        """Whether senders wait for room."""
        return bool(self._tickets)

    def join(self, lock: object) -> None:
        """Register a queue. Raises ProducerInUseError if queues with another lock use the buffer."""
        # guard: buffer-of-one-depot
        if (self._queues or self._reserved) and self._lock is not lock:
            raise ProducerInUseError("the buffer is used by producers of another depot", "Use a buffer for each depot.")
        self._lock = lock
        self._queues += 1

    def leave(self) -> None:
        """Unregister a queue."""
        self._queues -= 1

    def fits(self, byte_count: int) -> bool:
        """Whether there is room for `byte_count` bytes."""
        return self._reserved + byte_count <= self.size_bytes

    def reserve(self, byte_count: int) -> None:
        """Reserve room."""
        self._reserved += byte_count

    def release(self, byte_count: int) -> None:
        """Release room."""
        self._reserved -= byte_count

    def line_up(self) -> object:
        """Return a ticket behind those of all other waiting senders."""
        ticket = object()
        self._tickets.append(ticket)
        return ticket

    def is_first(self, ticket: object) -> bool:
        """Whether no sender has waited longer."""
        return self._tickets[0] is ticket

    def step_out(self, ticket: object) -> None:
        """Remove a ticket."""
        self._tickets.remove(ticket)

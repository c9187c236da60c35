"""The session with a broker: which messages are in flight, which are repeated, and which may be acknowledged.

A broker resends a message under the same id until it is acknowledged, also over the next connection. An id is valid
only until then, and only as long as the broker keeps the session. So an acknowledgement goes out only over the
connection that brought the message, in the order of arrival. A repeated message is recognised by its id and content if
it was not acknowledged. After the acknowledgement, a message with the same id and content may be a repetition, because
the acknowledgement was lost, or a new one. As this cannot be known, it counts as new: twice is better than never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class InFlightMessage:
    """A message in flight: its id (0 without one), the digest of its content, and its bytes in the buffer."""

    id: int
    content: bytes
    byte_count: int
    settled: bool = False
    connection: int = 0


class Session:
    """The messages that are not acknowledged yet; `uncommitted_count` counts those that the depot does not have yet."""

    def __init__(self) -> None:
        self.uncommitted_count = 0
        self.held_bytes = 0
        self._connection = 0
        self._known: dict[int, InFlightMessage] = {}
        self._receipt: deque[InFlightMessage] = deque()

    @property
    def in_flight(self) -> int:
        """Return how many received messages await an acknowledgement."""
        return len(self._receipt)

    def connected(self, kept: bool) -> None:
        """Note a new connection; `kept` says whether the broker still has the session."""
        self.lost()
        self._connection += 1
        if not kept:
            self._known.clear()

    def lost(self) -> None:
        """Note that the connection is lost: the broker resends what is not acknowledged."""
        self._receipt.clear()

    def is_redelivery(self, id_: int, again: bool, content: bytes) -> bool:
        """Tell whether a message is a repetition of one in flight, and note its arrival if so."""
        entry = self._known.get(id_)
        if not again or entry is None or entry.content != content:
            return False
        if entry.connection != self._connection:
            entry.connection = self._connection
            self._receipt.append(entry)
        return True

    def received(self, id_: int, content: bytes, byte_count: int) -> InFlightMessage:
        """Add a new message; its id is 0 if the broker awaits no acknowledgement."""
        entry = InFlightMessage(id_, content, byte_count, connection=self._connection)
        self.uncommitted_count += 1
        self.held_bytes += byte_count
        if id_:
            self._known[id_] = entry
            self._receipt.append(entry)
        return entry

    def settled(self, entry: InFlightMessage) -> None:
        """Note that the depot has a message."""
        entry.settled = True
        self.uncommitted_count -= 1
        self.held_bytes -= entry.byte_count

    def due(self) -> Iterator[int]:
        """Yield the ids that may be acknowledged now, each once."""
        while self._receipt and self._receipt[0].settled:
            entry = self._receipt.popleft()
            if self._known.get(entry.id) is entry:  # else the broker has reused the id for another message
                del self._known[entry.id]
                yield entry.id

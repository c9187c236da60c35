"""The session with a broker: which messages are on their way, which are known, what may be acknowledged.

A broker sends a message again, under the same id, until it is acknowledged, also over the next connection. An id means
something only until then, and only as long as the broker keeps the session. So an acknowledgement goes out only over
the connection that brought the message, in the order in which messages came, and what comes again is known by its id
and its content, if it was not acknowledged. What was may have lost its acknowledgement on the way, or may be a new
message with the same id and content: nobody can tell, so it is taken as new, because twice is better than never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Entry:
    """A message on its way: its id (0 without one), its content, what it takes of the buffer."""

    id: int
    content: bytes
    byte_count: int
    settled: bool = False
    connection: int = 0


class Session:
    """What was received and is not acknowledged yet. `held` is what the depot does not have yet."""

    def __init__(self) -> None:
        self.held = 0
        self.held_bytes = 0
        self._connection = 0
        self._known: dict[int, Entry] = {}
        self._receipt: deque[Entry] = deque()

    @property
    def in_flight(self) -> int:
        """Return how many messages the broker waits for an acknowledgement of, as far as they have come."""
        return len(self._receipt)

    def connected(self, kept: bool) -> None:
        """Begin a connection; `kept` says whether the broker still has the session."""
        self.lost()
        self._connection += 1
        if not kept:
            self._known.clear()

    def lost(self) -> None:
        """Note that the connection is gone: what is not acknowledged comes again."""
        self._receipt.clear()

    def comes_again(self, id_: int, again: bool, content: bytes) -> bool:
        """Take a message that is on its way already; tell whether it is."""
        entry = self._known.get(id_)
        if not again or entry is None or entry.content != content:
            return False
        if entry.connection != self._connection:
            entry.connection = self._connection
            self._receipt.append(entry)
        return True

    def received(self, id_: int, content: bytes, byte_count: int) -> Entry:
        """Take a new message, id 0 when the broker does not wait for its acknowledgement."""
        entry = Entry(id_, content, byte_count, connection=self._connection)
        self.held += 1
        self.held_bytes += byte_count
        if id_:
            self._known[id_] = entry
            self._receipt.append(entry)
        return entry

    def settled(self, entry: Entry) -> None:
        """Note that the depot has a message."""
        entry.settled = True
        self.held -= 1
        self.held_bytes -= entry.byte_count

    def due(self) -> Iterator[int]:
        """Give the ids that may be acknowledged now, each once."""
        while self._receipt and self._receipt[0].settled:
            entry = self._receipt.popleft()
            if self._known.get(entry.id) is entry:  # else the broker used the id again, and means another message
                del self._known[entry.id]
                yield entry.id

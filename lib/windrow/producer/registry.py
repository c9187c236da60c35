"""Which committers this process has: one for each depot. A forked process has none, and at its end each is closed."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - a commit at the end of the process could not load it any more
import os
import threading
from collections import Counter

import pyarrow as pa

from windrow.delta.creation import require_messages, require_raw
from windrow.delta.locations import absolute
from windrow.model import chunks
from windrow.producer.committer import Committer
from windrow.producer.queue import ProducerQueue
from windrow.settings.settings import ProducerPart

EXIT_SECONDS = 120.0


class Registry:
    """The committers by the places of their depots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._committers: dict[str, Committer] = {}
        self._guests: Counter[str] = Counter()  # who is joining, without the lock

    def join(
        self, location: str, name: str, chosen: ProducerPart, schema: pa.Schema, keep: str
    ) -> tuple[Committer, ProducerQueue]:
        """Return the committer of a depot, and the queue of an id. Raises TableRefused for a depot of other rows."""
        place = absolute(location)
        with self._lock:
            committer = self._committers.get(place)
            if committer is None:
                committer = self._committers[place] = Committer(place, schema, keep, self.stop)
            self._guests[place] += 1
        try:
            (require_raw if schema == chunks.RAW else require_messages)(committer.schema, place)
            return committer, committer.join(name, chosen)
        finally:
            with self._lock:
                self._guests[place] -= 1
                self._stop(committer)

    def leave(self, committer: Committer, queue: ProducerQueue, timeout: float) -> None:
        """Let a producer go, and a committer that serves none."""
        committer.leave(queue, timeout)
        self.stop(committer)

    def stop(self, committer: Committer) -> None:
        """End a committer that serves none."""
        with self._lock:
            self._stop(committer)

    def close(self) -> None:
        """Commit what is held, and fail the rest: the process ends."""
        for committer in list(self._committers.values()):
            committer.close(EXIT_SECONDS)

    def forget(self) -> None:
        """Begin anew in a forked process: its copies have no threads, and locks that nobody will open."""
        self.__init__()  # type: ignore[misc]

    def _stop(self, committer: Committer) -> None:
        if self._guests[committer.location] or not committer.stop_unless_used():
            return
        del self._guests[committer.location]
        if self._committers.get(committer.location) is committer:
            del self._committers[committer.location]


REGISTRY = Registry()
atexit.register(REGISTRY.close)
os.register_at_fork(after_in_child=REGISTRY.forget)

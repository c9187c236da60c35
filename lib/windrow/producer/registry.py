"""The committers of this process, one per depot. A forked process starts without any; at exit all are closed."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - a commit at exit could no longer import it
import os
import threading
from collections import Counter

import pyarrow as pa

from windrow.delta.creation import require_kind
from windrow.delta.locations import absolute
from windrow.model import chunks
from windrow.producer.committer import Committer
from windrow.producer.queue import ProducerQueue
from windrow.settings.settings import ProducerPart

EXIT_SECONDS = 120.0


class Registry:
    """The committers by depot location."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._committers: dict[str, Committer] = {}
        self._guests: Counter[str] = Counter()  # who is joining, without the lock

    def join(
        self, location: str, name: str, chosen: ProducerPart, schema: pa.Schema, keep: str
    ) -> tuple[Committer, ProducerQueue]:
        """Return the committer of a depot and the queue of an id. Raises TableRefused for the wrong kind of depot."""
        place = absolute(location)
        with self._lock:
            committer = self._committers.get(place)
            if committer is None:
                committer = self._committers[place] = Committer(place, schema, keep, self.stop)
            self._guests[place] += 1
        try:
            require_kind(committer.schema, place, raw=schema == chunks.RAW)
            return committer, committer.join(name, chosen)
        finally:
            with self._lock:
                self._guests[place] -= 1
                self._stop(committer)

    def leave(self, committer: Committer, queue: ProducerQueue, timeout: float) -> None:
        """Remove a producer, and its committer if it has no other."""
        committer.leave(queue, timeout)
        self.stop(committer)

    def stop(self, committer: Committer) -> None:
        """Stop a committer without producers."""
        with self._lock:
            self._stop(committer)

    def close(self) -> None:
        """Commit held messages, and fail the rest, because the process ends."""
        for committer in list(self._committers.values()):
            committer.close(EXIT_SECONDS)

    def forget(self) -> None:
        """Start empty in a forked process: the copies have no threads, and their locks may never be released."""
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

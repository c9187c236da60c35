"""The committer: one thread for each depot in a process, which commits what its queues hold, one batch after the other.

More writers would give less: each commit to a table waits for the other. A second thread looks at deadlines, because a
disk that hangs holds up the first one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pyarrow as pa

from windrow.delta.lock import keep_recent
from windrow.errors import DeliveryTimeout, ProducerFenced, ProducerInUse, WindrowError, first_line
from windrow.producer.batch import Batch
from windrow.producer.delivery import Position
from windrow.producer.queue import SECOND, Bell, ProducerQueue, not_known
from windrow.producer.state import State
from windrow.producer.writer import DepotWriter, Entry
from windrow.settings.settings import ProducerPart

LOG = logging.getLogger("windrow.producer")
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts


class Committer:
    """The queues of one depot and the threads that serve them."""

    def __init__(self, location: str, schema: pa.Schema, keep: str, unused: Callable[[Committer], None]) -> None:
        """Open the depot, or make it, for messages or chunks, by the schema.

        `unused` is called when a commit ended for which no queue is left.
        """
        self.location, self._unused = location, unused
        self._writer = DepotWriter.made(location, schema, keep)
        self._opening = threading.Lock()
        self._bell = Bell.new(time.monotonic)
        self._queues: dict[str, ProducerQueue] = {}
        self._delivering = False
        self._stopped = False
        for work in (self._commit_all, self._watch):
            threading.Thread(target=work, name=f"windrow-producer{work.__name__}", daemon=True).start()

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of what the depot holds: messages or chunks."""
        return self._writer.schema

    def recorded(self, name: str) -> Position:
        """Return how far a producer has come in the depot now."""
        return DepotWriter(self.location, raw=self._writer.raw).recorded(name)

    def join(self, name: str, chosen: ProducerPart) -> ProducerQueue:
        """Return the queue of an id, which several producers may share; wait while it closes. Raises ProducerInUse."""
        while True:
            self._await_closed(name)
            with self._opening:
                if (queue := self._joined(name, chosen)) is not None:
                    return queue

    def _joined(self, name: str, chosen: ProducerPart) -> ProducerQueue | None:
        """Return the queue of an id with one user more, None while it closes."""
        queue = self._queues.get(name)
        if queue is not None and queue.state is State.CLOSING:
            return None
        if queue is None or queue.state is not State.OPEN:
            reached, raw = self.recorded(name), self._writer.raw
            if chosen.durable:
                keep_recent(self.location)
            ended = raw and reached.mark is not None
            queue = ProducerQueue(name, chosen, reached.sequence, self._bell, ordered=raw, ended=ended)
            with self._bell.lock:
                self._queues[name] = queue
        if queue.chosen != chosen:
            raise ProducerInUse(
                f"producer {name!r} is open in this process with other settings",
                "Share its settings, or give this one an id of its own.",
            )
        queue.users += 1
        return queue

    def leave(self, queue: ProducerQueue, timeout: float) -> None:
        """Let a producer go; the last one of a queue closes it."""
        with self._opening:
            queue.users -= 1
            last = not queue.users
            if last:
                queue.begin_to_close()
        if not last:
            queue.flush(timeout)
            return
        queue.close(timeout)
        with self._bell.lock:
            if self._queues.get(queue.name) is queue:
                del self._queues[queue.name]
            self._bell.ended.notify_all()

    def _await_closed(self, name: str) -> None:
        """Wait while the queue of an id closes. Raises ProducerInUse where that would be to wait for itself."""
        with self._bell.lock:
            while (queue := self._queues.get(name)) is not None and queue.state is State.CLOSING:
                if self.is_own_thread() or queue.closer == threading.get_ident():
                    raise ProducerInUse(
                        f"producer {name!r} is being closed, and a callback of a message cannot wait for that",
                        "Open it in a thread of its own, or under another id.",
                    )
                self._bell.ended.wait()

    def close(self, timeout: float) -> None:
        """Close every queue."""
        for queue in list(self._queues.values()):
            queue.close(timeout)

    def stop_unless_used(self) -> bool:
        """End the threads if no queue is left; tell whether they end.

        While a commit hangs that everybody gave up they stay: whoever comes next under its id goes on behind it.
        """
        with self._bell.lock:
            self._stopped = not self._queues and not self._delivering
            self._bell.work.notify_all()
            self._bell.deadlines.notify_all()
            return self._stopped

    def is_own_thread(self) -> bool:
        """Tell whether a callback of a message calls: to wait here would wait for itself."""
        return threading.current_thread().name.startswith("windrow-producer_")

    # The committing thread.

    def _commit_all(self) -> None:
        while (found := self._next()) is not None:
            queue, batch = found
            try:
                self._deliver(queue, batch)
            except Exception:
                LOG.exception("the committer of %s went on after an error of its own", self.location)
            with self._bell.lock:
                self._delivering = False
                left = bool(self._queues)
            if not left:
                self._unused(self)

    def _next(self) -> tuple[ProducerQueue, Batch] | None:
        """Wait for the batch that is due first; None at the end."""
        with self._bell.lock:
            while not self._stopped:
                now = self._bell.now()
                due = [(at, queue) for queue in self._queues.values() if (at := queue.due_at()) is not None]
                at, queue = min(due, key=lambda one: one[0], default=(None, None))
                if at is not None and queue is not None and at <= now:
                    self._delivering = True
                    return queue, queue.take()
                self._bell.work.wait(None if at is None else at - now)
        return None

    def _deliver(self, queue: ProducerQueue, batch: Batch) -> None:
        """Commit a batch, and tell what became of it."""
        began = self._bell.now()
        try:
            version = self._persist(queue, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the senders get it
            self._failed(queue, batch, error)
            return
        first = queue.sequence + 1
        with self._bell.lock:
            queue.committed(batch, batch.messages, began)
        batch.acknowledge(version, first)
        with self._bell.lock:
            queue.settled(batch)

    def _persist(self, queue: ProducerQueue, batch: Batch) -> int:
        """Commit, again after what may pass, until the deadline. Raises DeliveryTimeout, ProducerFenced."""
        pause, said, hint = FIRST_PAUSE, "there was no time for an attempt", ""
        while True:
            try:
                queue.sequence = self._writer.reached(queue.name, queue.sequence, batch.note)
                rows = batch.table(queue.sequence + 1, self.schema)
                if not self._is_awaited(queue, batch):
                    raise self._given_up(queue, batch, said, hint)
                entry = Entry(queue.name, queue.sequence, batch.note, batch.mark)
                return self._writer.append(rows, entry, queue.chosen.durable)
            except WindrowError as error:
                if not error.retryable:
                    raise
                said, hint = f"the last attempt failed: {error.message}", error.hint
                LOG.warning("a commit to %s failed: %s", self.location, error.message)
            with self._bell.lock:
                if not self._is_awaited(queue, batch, pause):
                    raise self._given_up(queue, batch, said, hint)
                self._bell.room.wait_for(lambda: queue.state is State.CLOSED, pause)
                queue.counters.retries += 1
            pause = min(2 * pause, LONGEST_PAUSE)

    def _is_awaited(self, queue: ProducerQueue, batch: Batch, pause: float = 0.0) -> bool:
        """Tell whether anybody will still wait for a batch after a pause: else nobody is told that it is committed."""
        return self._bell.now() + pause < batch.deadline and queue.state is not State.CLOSED

    def _given_up(self, queue: ProducerQueue, batch: Batch, said: str, hint: str) -> DeliveryTimeout:
        if self._writer.in_doubt(queue.name, batch.note):
            return not_known(said)
        seconds = queue.chosen.delivery_timeout / SECOND
        return DeliveryTimeout(f"the message was not committed within {seconds:g} s, {said}", hint)

    def _failed(self, queue: ProducerQueue, batch: Batch, error: Exception) -> None:
        ended: Callable[[], None] = _nothing
        with self._bell.lock:
            queue.failed(batch)
            if isinstance(error, ProducerFenced):
                ended = queue.fence(error)
            # guard: missing-chunk
            elif queue.ordered:
                ended = queue.break_off()
        LOG.error("%d messages of producer %s were not committed: %s", batch.messages, queue.name, first_line(error))
        batch.fail(error)
        with self._bell.lock:
            queue.settled(batch)
        ended()

    # The thread that watches the deadlines.

    def _watch(self) -> None:
        while True:
            with self._bell.lock:
                if self._stopped:
                    return
                firsts = [at for queue in self._queues.values() if (at := queue.first_deadline()) is not None]
                wait = min(firsts, default=None)
                if wait is None or wait > self._bell.now():
                    self._bell.deadlines.wait(None if wait is None else wait - self._bell.now())
                    continue
                expired = [queue.expire() for queue in self._queues.values()]
            for say in expired:
                say()


def _nothing() -> None:
    """Nobody waits."""

"""The committers of this process: one thread per depot commits the batches of all its queues one after the other.

More writers would be slower, since commits to a table wait for each other. A second thread watches the deadlines,
because a hanging disk blocks the first. A forked process starts without committers; all are closed at exit.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - a commit at exit could no longer import it
import logging
import os
import threading
import time
from collections import Counter

import pyarrow as pa

from windrow.delta.creation import require_kind
from windrow.delta.locations import absolute, require_safe
from windrow.delta.lock import sync_recent
from windrow.errors import (
    REPORT,
    DeliveryTimeoutError,
    InternalError,
    ProducerFencedError,
    ProducerInUseError,
    WindrowError,
    first_line,
)
from windrow.model import chunks
from windrow.model.durations import SECOND
from windrow.producer.buffer import Buffer
from windrow.producer.delivery import Batch, Position
from windrow.producer.queue import Bell, ProducerQueue, ProducerState, unknown_outcome_error
from windrow.producer.writer import CommitEntry, DepotWriter
from windrow.settings.producer import ProducerOptions

LOG = logging.getLogger("windrow.producer")
FIRST_PAUSE, MAX_PAUSE = 0.05, 2.0  # seconds between attempts
EXIT_SECONDS = 120.0


class Committer:
    """The queues of one depot and the threads that serve them."""

    def __init__(self, location: str, schema: pa.Schema, retention: str) -> None:
        """Open the depot or create it, for messages or chunks, depending on the schema."""
        require_safe("depot", location)
        self.location = location
        self._writer = DepotWriter.open_or_create(location, schema, retention)
        self.schema = self._writer.schema  # of messages, in the depot's payload type, or of chunks
        self._opening = threading.Lock()
        self._bell = Bell()
        self._queues: dict[str, ProducerQueue] = {}
        self._delivering = False
        self._stopped = False
        for work in (self._commit_all, self._watch):
            threading.Thread(target=work, name=f"windrow-producer{work.__name__}", daemon=True).start()

    def recorded_position(self, name: str) -> Position:
        """Return the current position of a producer in the depot."""
        return DepotWriter(self.location, raw=self._writer.raw).read_position(name)

    def join(self, name: str, chosen: ProducerOptions, buffer: Buffer | None = None) -> ProducerQueue:
        """Return the queue of an id, which producers may share; wait if it is closing. Raises ProducerInUseError."""
        while True:
            self._await_closed(name)
            with self._opening:
                if (queue := self._join_queue(name, chosen, buffer)) is not None:
                    return queue

    def _join_queue(self, name: str, chosen: ProducerOptions, buffer: Buffer | None) -> ProducerQueue | None:
        """Return the queue of an id with one more user, None if it is closing."""
        queue = self._queues.get(name)
        if queue is not None and queue.state is ProducerState.CLOSING:
            return None
        if queue is None or queue.state is not ProducerState.OPEN:
            reached, raw = self.recorded_position(name), self._writer.raw
            if chosen.fsync:
                sync_recent(self.location)
            ended = raw and reached.mark is not None
            room = buffer or Buffer(chosen.max_buffer_bytes)
            with self._bell.lock:
                queue = ProducerQueue(name, chosen, reached.sequence, self._bell, room, ordered=raw, ended=ended)
                self._queues[name] = queue
        if queue.chosen != chosen or buffer not in (None, queue.buffer):
            raise ProducerInUseError(
                f"producer {name!r} is open in this process with other settings or another buffer",
                "Use the same settings and buffer, or another id.",
            )
        queue.users += 1
        return queue

    def leave(self, queue: ProducerQueue, timeout: float) -> None:
        """Remove a producer from its queue; the last one closes the queue."""
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
        """Wait while the queue of an id closes. Raises ProducerInUseError if a thread would wait for itself."""
        with self._bell.lock:
            while (queue := self._queues.get(name)) is not None and queue.state is ProducerState.CLOSING:
                if self.is_own_thread() or queue.closer == threading.get_ident():
                    raise ProducerInUseError(
                        f"producer {name!r} is closing, and a callback of a message cannot wait for that",
                        "Open it in another thread, or under another id.",
                    )
                self._bell.ended.wait()

    def close(self, timeout: float) -> None:
        """Close every queue."""
        for queue in list(self._queues.values()):
            queue.close(timeout)

    def stop_unless_used(self) -> bool:
        """End the threads if no queue is left; return whether they end.

        They stay while an abandoned commit hangs, so that the next producer with its id continues after it.
        """
        with self._bell.lock:
            self._stopped = not self._queues and not self._delivering
            self._bell.work.notify_all()
            self._bell.deadlines.notify_all()
            return self._stopped

    def is_own_thread(self) -> bool:
        """Tell whether a callback of a message is the caller: it must not wait, since it would wait for itself."""
        return threading.current_thread().name.startswith("windrow-producer_")

    # The committing thread.

    def _commit_all(self) -> None:
        while (result := self._next()) is not None:
            queue, batch = result
            try:
                self._deliver(queue, batch)
            except BaseException:  # whatever it was, the next batch has senders too
                LOG.exception("the committer of %s continues after an internal error", self.location)
            with self._bell.lock:
                self._delivering = False
                left = bool(self._queues)
            if not left:
                REGISTRY.stop(self)

    def _next(self) -> tuple[ProducerQueue, Batch] | None:
        """Wait for the first batch that is due; return None at the end."""
        with self._bell.lock:
            while not self._stopped:
                now = time.monotonic()
                due = [(at, queue) for queue in self._queues.values() if (at := queue.due_at()) is not None]
                at, queue = min(due, key=lambda pair: pair[0], default=(None, None))
                if at is not None and queue is not None and at <= now:
                    self._delivering = True
                    return queue, queue.take()
                self._bell.work.wait(None if at is None else at - now)
        return None

    def _deliver(self, queue: ProducerQueue, batch: Batch) -> None:
        began = time.monotonic()
        try:
            version = self._persist(queue, batch)
        # guard: senders-get-any-error
        except BaseException as error:  # noqa: BLE001 - a panic of delta-rs is none of Exception
            self._fail_batch(queue, batch, error if isinstance(error, Exception) else sender_error(error))
            return
        first = queue.sequence + 1
        with self._bell.lock:
            queue.committed(batch, began)
        batch.acknowledge(version, first)
        with self._bell.lock:
            queue.settled(batch)

    def _persist(self, queue: ProducerQueue, batch: Batch) -> int:
        """Commit, and retry after temporary errors until the deadline.

        Raises DeliveryTimeoutError, ProducerFencedError.
        """
        pause, why, hint = FIRST_PAUSE, "there was no time for an attempt", ""
        while True:
            try:
                queue.sequence = self._writer.resume_sequence(queue.name, queue.sequence, batch.note)
                rows = batch.table(queue.sequence + 1, self.schema)
                if not self._is_awaited(queue, batch):
                    raise self._give_up(queue, batch, why, hint)
                entry = CommitEntry(queue.name, queue.sequence, batch.note, batch.mark, batch.fingerprint)
                return self._writer.append(rows, entry, queue.chosen.fsync)
            except WindrowError as error:
                if not error.retryable:
                    raise
                why, hint = f"the last attempt failed: {error.message}", error.hint
                LOG.warning("a commit to %s failed: %s", self.location, error.message)
            with self._bell.lock:
                if not self._is_awaited(queue, batch, pause):
                    raise self._give_up(queue, batch, why, hint)
                self._bell.room.wait_for(lambda: queue.state is ProducerState.CLOSED, pause)
                queue.counters.retries += 1
            pause = min(2 * pause, MAX_PAUSE)

    def _is_awaited(self, queue: ProducerQueue, batch: Batch, pause: float = 0.0) -> bool:
        """Tell whether a batch is still awaited after a pause; otherwise its senders would not learn of a commit."""
        return time.monotonic() + pause < batch.deadline and queue.state is not ProducerState.CLOSED

    def _give_up(self, queue: ProducerQueue, batch: Batch, why: str, hint: str) -> DeliveryTimeoutError:
        if self._writer.may_be_committed(queue.name, batch.note):
            return unknown_outcome_error(why)
        seconds = queue.chosen.delivery_timeout / SECOND
        return DeliveryTimeoutError(f"the message was not committed within {seconds:g} s, {why}", hint)

    def _fail_batch(self, queue: ProducerQueue, batch: Batch, error: Exception) -> None:
        fail_others = None
        with self._bell.lock:
            queue.failed(batch)
            if isinstance(error, ProducerFencedError):
                fail_others = queue.fence(error)
            # guard: missing-chunk
            elif queue.ordered:
                fail_others = queue.abort()
        LOG.error("%d messages of producer %s were not committed: %s", batch.messages, queue.name, first_line(error))
        batch.fail(error)
        with self._bell.lock:
            queue.settled(batch)
        if fail_others is not None:
            fail_others()

    # The thread that watches the deadlines.

    def _watch(self) -> None:
        while True:
            with self._bell.lock:
                if self._stopped:
                    return
                firsts = [at for queue in self._queues.values() if (at := queue.first_deadline()) is not None]
                wait = min(firsts, default=None)
                if wait is None or wait > time.monotonic():
                    self._bell.deadlines.wait(None if wait is None else wait - time.monotonic())
                    continue
                expired = [queue.expire() for queue in self._queues.values()]
            for fail in expired:
                fail()


def sender_error(error: BaseException) -> InternalError:
    """Return the error for senders in place of one that ends a thread: raised in theirs, it would end the program."""
    return InternalError(f"the commit was broken off by {type(error).__name__}: {first_line(error)}", REPORT)


class Registry:
    """The committers by depot location."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._committers: dict[str, Committer] = {}
        self._guests: Counter[str] = Counter()  # how many are joining, without the lock

    def join(
        self,
        location: str,
        name: str,
        chosen: ProducerOptions,
        schema: pa.Schema,
        retention: str,
        buffer: Buffer | None = None,
    ) -> tuple[Committer, ProducerQueue]:
        """Return the committer of a depot and the queue of an id.

        Raises IncompatibleTableError for the wrong kind of depot.
        """
        place = absolute(location)
        with self._lock:
            committer = self._committers.get(place)
            if committer is None:
                committer = self._committers[place] = Committer(place, schema, retention)
            self._guests[place] += 1
        try:
            require_kind(committer.schema, place, raw=schema == chunks.RAW)
            return committer, committer.join(name, chosen, buffer)
        finally:
            with self._lock:
                self._guests[place] -= 1
                self.stop(committer)

    def leave(self, committer: Committer, queue: ProducerQueue, timeout: float) -> None:
        """Remove a producer, and its committer if it has no other."""
        committer.leave(queue, timeout)
        self.stop(committer)

    def stop(self, committer: Committer) -> None:
        """Stop a committer without producers."""
        with self._lock:
            if self._guests[committer.location] or not committer.stop_unless_used():
                return
            del self._guests[committer.location]
            if self._committers.get(committer.location) is committer:
                del self._committers[committer.location]

    def close(self) -> None:
        """Commit held messages, and fail the rest, because the process ends."""
        for committer in list(self._committers.values()):
            committer.close(EXIT_SECONDS)

    def forget(self) -> None:
        """Start empty in a forked process: the copies have no threads, and their locks may never be released."""
        self.__init__()  # type: ignore[misc]


REGISTRY = Registry()
atexit.register(REGISTRY.close)
os.register_at_fork(after_in_child=REGISTRY.forget)

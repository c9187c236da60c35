"""The queue of one producer id: messages that are sent and not committed yet, in order and within limits.

Everything happens under the committer's lock. A batch is *due* when it is sealed (full, a table, or flushed), when its
first message has waited for `linger`, when all of its messages are awaited, or when senders wait for room. Only the
first batch can be due and only one is in flight, so messages are committed in the order in which they were sent.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum

import pyarrow as pa

from windrow.errors import BufferFullError, DeliveryTimeoutError, ProducerClosedError, WindrowError
from windrow.model.durations import SECOND
from windrow.producer.buffer import Buffer
from windrow.producer.delivery import Batch, Delivery
from windrow.producer.metrics import CommitSample, Counters, ProducerMetrics
from windrow.producer.row import ChunkRow, MessageRow, OutgoingRow
from windrow.settings.producer import BATCH_BYTES, ProducerOptions

ENDED = 1  # the mark of a raw source whose last chunk is in the depot


class ProducerState(Enum):
    """The state of a producer."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    FENCED = "fenced"


# Only an open producer takes messages. Closed and fenced are final.
TRANSITIONS = {
    ProducerState.OPEN: (ProducerState.CLOSING, ProducerState.FENCED),
    ProducerState.CLOSING: (ProducerState.CLOSED, ProducerState.FENCED),
}


class Bell:
    """The lock of a committer, and its conditions: for the committer, senders without room, ends and deadlines."""

    def __init__(self) -> None:
        """Create four conditions with one lock."""
        self.lock = threading.RLock()
        self.work, self.room, self.ended, self.deadlines = (threading.Condition(self.lock) for _ in range(4))


class ProducerQueue:
    """The messages of one id that are not committed yet."""

    def __init__(
        self,
        name: str,
        chosen: ProducerOptions,
        sequence: int,
        bell: Bell,
        buffer: Buffer,
        *,
        ordered: bool = False,
        ended: bool = False,
    ) -> None:
        """Begin after message number `sequence`, the last one in the depot.

        In an `ordered` queue nothing may follow a failed message; an `ended` one accepts nothing. Other queues may
        share the `buffer`. Raises ProducerInUseError if those of another committer do.
        """
        buffer.join(bell)
        self.buffer = buffer
        self.name, self.chosen, self.sequence = name, chosen, sequence
        self.ordered, self._ended = ordered, ended
        self.state = ProducerState.OPEN
        self.refused: WindrowError | None = None
        self.users = 0
        self.closer: int | None = None  # the thread that closes the queue
        self._bell = bell
        self._batches: deque[Batch] = deque()
        self._in_flight: Batch | None = None
        self._unsettled: set[Batch] = set()
        self.counters = Counters(time.monotonic())

    # What senders do.

    def send(self, row: OutgoingRow, may_wait: bool = True) -> Delivery:
        """Add a message once there is room. Raises ProducerClosedError, ProducerFencedError, BufferFullError.

        An oversize message counts as `max_message_bytes`.
        """
        byte_count = min(row.byte_count, self.chosen.max_message_bytes)
        with self._bell.lock:
            self._await_room(byte_count, may_wait)
            now = time.monotonic()
            batch = self._open_batch(row, now)
            delivery = batch.reserve(byte_count, now, self._awaited)
            batch.sent.append(row)
            self._took(batch, byte_count)
            if isinstance(row, ChunkRow) and row.last:
                batch.mark, batch.sealed, self._ended = ENDED, True, True
            if batch.messages >= self.chosen.max_commit_rows or batch.reserved >= BATCH_BYTES:
                batch.sealed = True
            self._tell(batch)
            return delivery

    def send_many(
        self, table: pa.Table, mark: int | None = None, fingerprint: int | None = None, *, may_wait: bool = True
    ) -> Delivery:
        """Add a table as a separate batch, after everything that was sent before. Raises as `send`.

        A table that is larger than the buffer waits until the buffer is empty.
        """
        byte_count = min(table.nbytes, self.buffer.size_bytes)
        with self._bell.lock:
            self._await_room(byte_count, may_wait)
            self._seal()
            now = time.monotonic()
            batch = self._new(now, table)
            batch.mark, batch.fingerprint = mark, fingerprint
            delivery = batch.reserve(byte_count, now, self._awaited)
            batch.sealed = True
            self._took(batch, byte_count)
            self._tell(self._batches[0])
            return delivery

    def flush(self, timeout: float | None = None) -> bool:
        """Commit everything sent so far without lingering, and wait until it is committed or has failed.

        Returns False after `timeout` seconds. The futures of messages raise their errors; this does not.
        """
        with self._bell.lock:
            self._seal()
            self._bell.work.notify()
            before = set(self._unsettled)
            return self._bell.ended.wait_for(lambda: not before & self._unsettled, timeout)

    def begin_to_close(self) -> None:
        """Refuse new messages."""
        with self._bell.lock:
            self.closer = threading.get_ident()
            self._become(ProducerState.CLOSING)

    def close(self, timeout: float) -> None:
        """Refuse new messages, flush, and fail what is not committed after `timeout` seconds."""
        self.begin_to_close()
        self.flush(timeout)
        fail_rest = self.give_up(
            ProducerClosedError(
                f"producer {self.name!r} was closed before the message was committed",
                "Close it with a longer timeout, or check why commits to the depot fail.",
            )
        )
        with self._bell.lock:
            self._become(ProducerState.CLOSED)
            self.buffer.leave()
        fail_rest()

    def metrics(self) -> ProducerMetrics:
        """Return the current figures."""
        with self._bell.lock:
            return self.counters.snapshot(time.monotonic(), self.buffer.size_bytes, self.buffer.available_bytes)

    # What the committer does; it holds the lock.

    def due_at(self) -> float | None:
        """Return when the next batch is due (monotonic seconds), None if there is none.

        A batch that need not linger was due when it began, so that among several queues the longest wait comes first.
        """
        if not self._batches or self._in_flight is not None:
            return None
        first = self._batches[0]
        if first.sealed or first.all_wait or self.buffer.has_waiting:
            return first.begun
        return first.begun + self.chosen.linger / SECOND

    def take(self) -> Batch:
        """Remove the first batch to commit it."""
        self._in_flight = self._batches.popleft()
        self._in_flight.sealed = True
        return self._in_flight

    def committed(self, batch: Batch, began: float) -> None:
        """Count a committed batch, and release its room."""
        now, messages = time.monotonic(), batch.messages
        self.sequence += messages
        queued = (
            [began - sent for sent in batch.times] if batch.sent_table is None else [began - batch.begun] * messages
        )
        self.counters.committed(
            CommitSample(now, messages, batch.reserved, sum(queued), max(queued, default=0.0), now - began)
        )
        self._release(batch)

    def failed(self, batch: Batch) -> None:
        """Count a failed batch, and release its room."""
        self.counters.errors += batch.messages
        self._release(batch)

    def _release(self, batch: Batch) -> None:
        """Release the room of a batch, once."""
        self.buffer.release(batch.reserved)
        batch.reserved = 0
        if self._in_flight is batch:
            self._in_flight = None
        self._bell.room.notify_all()

    def settled(self, batch: Batch) -> None:
        """Note that all deliveries of a batch are complete."""
        self._unsettled.discard(batch)
        self._bell.ended.notify_all()

    def abort(self) -> Callable[[], None]:
        """Refuse new messages and fail all held ones, because an earlier one is missing; returns like `fence`."""
        return self.fence(
            ProducerClosedError(
                f"a chunk of raw source {self.name!r} was not committed, so none can follow it",
                "Open the producer again, and continue after `last_sequence()`.",
            )
        )

    def fence(self, error: WindrowError) -> Callable[[], None]:
        """Refuse new messages and fail all held ones; call the returned function without the lock to notify senders."""
        self.refused = error
        self._become(ProducerState.FENCED)
        return self.give_up(error)

    # What ends without a commit.

    def first_deadline(self) -> float | None:
        """Return when the oldest message is given up (monotonic seconds), None if there is none."""
        return min((batch.deadline for batch in self._pending()), default=None)

    def expire(self) -> Callable[[], None]:
        """Give up messages past their deadline; call the returned function without the lock to notify senders."""
        now = time.monotonic()
        late = [batch for batch in self._pending() if batch.deadline <= now]
        if late and self.ordered:
            return self.abort()
        return self._drop(
            late,
            DeliveryTimeoutError(
                f"the message was not committed within {self.chosen.delivery_timeout / SECOND:g} s",
                "It is not in the depot and will not be. Check why commits to the depot fail, and send it again.",
            ),
        )

    def give_up(self, error: WindrowError) -> Callable[[], None]:
        """Give up all messages; call the returned function without the lock to notify senders."""
        with self._bell.lock:
            return self._drop(self._pending(), error)

    def _pending(self) -> list[Batch]:
        """Return the batches without an outcome yet."""
        flying = [self._in_flight] if self._in_flight in self._unsettled else []
        return [*flying, *self._batches]

    def _drop(self, batches: list[Batch], error: WindrowError) -> Callable[[], None]:
        unknown = unknown_outcome_error(error.message)
        ends = [(batch, unknown if batch is self._in_flight else error) for batch in batches]
        for batch in batches:
            if batch is not self._in_flight:
                self._batches.remove(batch)
                self.failed(batch)

        def notify() -> None:
            for batch, end in ends:
                batch.fail(end)
            with self._bell.lock:
                for batch in batches:
                    self.settled(batch)

        return notify

    # Parts.

    def _become(self, state: ProducerState) -> None:
        """Change to a state if the current one leads there, and wake all who wait."""
        if state in TRANSITIONS.get(self.state, ()):
            self.state = state
        for condition in (self._bell.work, self._bell.room, self._bell.ended):
            condition.notify_all()

    def _await_room(self, byte_count: int, may_wait: bool) -> None:
        """Wait for room, first come first served, if allowed.

        Raises ProducerClosedError, ProducerFencedError, BufferFullError.
        """
        self._require_open()
        if not self.buffer.has_waiting and self.buffer.fits(byte_count):
            return
        if not self.chosen.block_timeout:
            raise self._full()
        if not may_wait:
            raise BufferFullError(
                "the buffer is full, and a callback cannot wait for room", "Send from another thread."
            )
        ticket, began = self.buffer.line_up(), time.monotonic()
        self.counters.waiting += 1
        self._bell.work.notify()
        try:
            mine = self._bell.room.wait_for(
                lambda: (
                    self.state is not ProducerState.OPEN
                    or (self.buffer.is_first(ticket) and self.buffer.fits(byte_count))
                ),
                self.chosen.block_timeout / SECOND,
            )
        finally:
            self.buffer.step_out(ticket)
            self.counters.waiting -= 1
            self.counters.waited += time.monotonic() - began
            self._bell.room.notify_all()
        self._require_open()
        if not mine:
            raise self._full()

    def _full(self) -> BufferFullError:
        waiting_bytes = self.buffer.size_bytes - self.buffer.available_bytes
        return BufferFullError(
            f"the buffer of producer {self.name!r} is full: it holds {waiting_bytes:,} bytes",
            "Messages arrive faster than they are committed. Send less, or raise max_buffer_bytes or block_timeout.",
        )

    def _require_open(self) -> None:
        if self.refused is not None:
            raise self.refused
        if self.state is not ProducerState.OPEN:
            raise ProducerClosedError(f"producer {self.name!r} is closed", "Open another one.")
        if self._ended:
            raise ProducerClosedError(
                f"raw source {self.name!r} has ended: its last chunk was sent", "Send more as another raw source."
            )

    def _open_batch(self, row: OutgoingRow, now: float) -> Batch:
        """Return the batch that a message joins: the last one, unless it is sealed or has another `batch_by`."""
        last = self._batches[-1] if self._batches and not self._batches[-1].sealed else None
        if last is not None and self.chosen.batch_by and isinstance(row, MessageRow) and last.sent:
            # guard: batch-by-one-value
            last.sealed = getattr(last.sent[-1], self.chosen.batch_by) != getattr(row, self.chosen.batch_by)
        return self._new(now, None) if last is None or last.sealed else last

    def _new(self, now: float, table: pa.Table | None) -> Batch:
        return Batch(now, now + self.chosen.delivery_timeout / SECOND, table)

    def _took(self, batch: Batch, byte_count: int) -> None:
        """Reserve room for a message, and queue its batch if it is new. After this, nothing can fail."""
        self.buffer.reserve(byte_count)
        if batch in self._unsettled:
            return
        if not self._unsettled:
            self._bell.deadlines.notify()
        self._batches.append(batch)
        self._unsettled.add(batch)

    def _seal(self) -> None:
        if self._batches:
            self._batches[-1].sealed = True

    def _tell(self, batch: Batch) -> None:
        """Wake the committer if there is a new first batch to time, or one that is due."""
        if batch is self._batches[0] and (batch.sealed or batch.messages == 1):
            self._bell.work.notify()

    def _awaited(self, batch: Batch) -> None:
        with self._bell.lock:
            batch.awaited += 1
            if batch.all_wait:
                self._bell.work.notify()


def unknown_outcome_error(why: str) -> DeliveryTimeoutError:
    """Return the error of a message that may or may not be in the depot."""
    return DeliveryTimeoutError(
        f"it is not known whether the message was committed: {why}",
        "Its commit was in progress. `last_sequence()` of a producer with this id shows it once the depot answers.",
    )

"""The metrics of a producer, with the names of Kafka's producer metrics in snake case."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """The figures of a producer: totals since its start, averages and rates over the last minute (0 without commits).

    A record is a message, a request a commit. Times are milliseconds, sizes bytes, rates per second.
    """

    record_send_total: int
    record_send_rate: float
    record_error_total: int
    record_retry_total: int
    records_per_request_avg: float
    batch_size_avg: float
    batch_size_max: int
    record_queue_time_avg: float
    record_queue_time_max: float
    request_total: int
    request_latency_avg: float
    request_latency_max: float
    buffer_total_bytes: int
    buffer_available_bytes: int
    bufferpool_wait_time_total: float
    waiting_threads: int


@dataclass(frozen=True, slots=True)
class CommitSample:
    """A commit: its end (monotonic seconds), its messages and bytes, and the seconds in the queue and in the commit."""

    ended: float
    message_count: int
    byte_count: int
    queued_sum: float
    queued_most: float
    took: float


class Counters:
    """The counts so far; callers hold the lock of the queue."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._recent: deque[CommitSample] = deque()
        self.messages = self.requests = self.errors = self.retries = 0
        self.waited = 0.0
        self.waiting = 0

    def committed(self, request: CommitSample) -> None:
        """Count a commit."""
        self.messages += request.message_count
        self.requests += 1
        self._recent.append(request)
        self._forget(request.ended)

    def snapshot(self, now: float, total: int, available: int) -> ProducerMetrics:
        """Return the current figures."""
        self._forget(now)
        recent = list(self._recent)
        requests, messages = len(recent), sum(commit.message_count for commit in recent)
        return ProducerMetrics(
            record_send_total=self.messages,
            record_send_rate=_ratio(messages, min(now - self._begun, WINDOW_SECONDS)),
            record_error_total=self.errors,
            record_retry_total=self.retries,
            records_per_request_avg=_ratio(messages, requests),
            batch_size_avg=_ratio(sum(commit.byte_count for commit in recent), requests),
            batch_size_max=max((commit.byte_count for commit in recent), default=0),
            record_queue_time_avg=1_000 * _ratio(sum(commit.queued_sum for commit in recent), messages),
            record_queue_time_max=1_000 * max((commit.queued_most for commit in recent), default=0.0),
            request_total=self.requests,
            request_latency_avg=1_000 * _ratio(sum(commit.took for commit in recent), requests),
            request_latency_max=1_000 * max((commit.took for commit in recent), default=0.0),
            buffer_total_bytes=total,
            buffer_available_bytes=available,
            bufferpool_wait_time_total=1_000 * self.waited,
            waiting_threads=self.waiting,
        )

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0].ended < now - WINDOW_SECONDS:
            self._recent.popleft()


def _ratio(sum_: float, count: float) -> float:
    return sum_ / count if count else 0.0

"""The log lines of a bridge: connections, invalid messages, and every minute the counts."""

from __future__ import annotations

from dataclasses import asdict

from windrow.errors import WindrowError
from windrow.operate.log import log
from windrow.producer.bridge.summary import Counts, KafkaCounts
from windrow.version import VERSION

EVERY_SECONDS = 60.0


class Lines:
    """Writes the log lines; of frequent events it writes the first one, and then one a minute."""

    def __init__(self, counts: Counts | KafkaCounts, now: float) -> None:
        self._counts = counts
        self._logged = asdict(counts)
        self._logged_at = now
        self._warned_at: float | None = None

    def started(self, broker: str, depot: str, filters: list[str]) -> None:
        """Log the start."""
        log.info("bridge started", broker=broker, depot=depot, topics=filters, windrow=VERSION)

    def unprotected(self, broker: str) -> None:
        """Warn that a password goes over the network unencrypted."""
        log.warning("password without TLS", broker=broker)

    def connected(self, broker: str, kept: bool) -> None:
        """Log that the broker has accepted the connection."""
        log.info("connected", broker=broker, session_kept=kept)

    def lost(self, broker: str, why: str, seconds: float) -> None:
        """Log why there is no connection, and when the next attempt is."""
        log.warning("no connection", broker=broker, error=why, again_in_s=round(seconds, 1))

    def invalid(self, topic: str, why: str, now: float) -> None:
        """Log an invalid message: the first one, and then one a minute."""
        if self._warned_at is None or now - self._warned_at >= EVERY_SECONDS:
            self._warned_at = now
            log.warning("no message", topic=topic[:200], why=why, invalid=self._counts.invalid)

    def assigned(self, partitions: int) -> None:
        """Log that the worker has got partitions."""
        log.info("partitions assigned", partitions=partitions)

    def fenced(self, partition: str) -> None:
        """Warn that another worker has written a partition."""
        log.warning("another worker was faster", partition=partition)

    def skipped(self, partition: str, reached: int, begins: int) -> None:
        """Warn that the broker has removed offsets that this group had read, or that somebody gave up."""
        log.warning("offsets removed", partition=partition, depot_has_up_to=reached, begins_at=begins)

    def trouble(self, broker: str, why: str, now: float) -> None:
        """Warn of an error after which the client goes on by itself: the first one, and then one a minute."""
        if self._warned_at is None or now - self._warned_at >= EVERY_SECONDS:
            self._warned_at = now
            log.warning("no connection", broker=broker, error=why)

    def tick(self, now: float) -> None:
        """Log the counts every minute, if they have changed."""
        if now - self._logged_at < EVERY_SECONDS:
            return
        self._logged_at, before, self._logged = now, self._logged, asdict(self._counts)
        if self._logged != before:
            log.info("bridged", **self._logged)

    def ended(self, seconds: float, error: BaseException | None) -> None:
        """Log the totals; the command prints the error itself."""
        done = asdict(self._counts) | {"seconds": seconds}
        if error is None:
            log.info("bridge ended", **done)
        else:
            code = error.code if isinstance(error, WindrowError) else type(error).__name__
            log.error("bridge failed", code=code, **done)

"""The log of a bridge: connections, what is no message, and every minute how much came through."""

from __future__ import annotations

from dataclasses import asdict

from windrow.errors import WindrowError
from windrow.operate.log import log
from windrow.producer.bridge.reader import Reading
from windrow.producer.bridge.summary import Counts
from windrow.version import VERSION

EVERY_SECONDS = 60.0


class Lines:
    """Writes the log; of what comes often it says the first, and then how often."""

    def __init__(self, counts: Counts, now: float) -> None:
        self._counts = counts
        self._said = asdict(counts)
        self._said_at = now
        self._complained_at: float | None = None

    def started(self, broker: str, depot: str, filters: list[str]) -> None:
        """Say what is bridged."""
        log.info("bridge started", broker=broker, depot=depot, topics=filters, windrow=VERSION)

    def unprotected(self, broker: str) -> None:
        """Say that a password goes over the network for all to read."""
        log.warning("password without TLS", broker=broker)

    def connected(self, broker: str, kept: bool) -> None:
        """Say that the broker has accepted."""
        log.info("connected", broker=broker, session_kept=kept)

    def lost(self, broker: str, why: str, seconds: float) -> None:
        """Say why there is no connection, and when there may be one."""
        log.warning("no connection", broker=broker, error=why, again_in_s=round(seconds, 1))

    def invalid(self, topic: str, reading: Reading, now: float) -> None:
        """Say what came that is no message: the first, and one a minute."""
        if self._complained_at is None or now - self._complained_at >= EVERY_SECONDS:
            self._complained_at = now
            log.warning("no message", topic=topic[:200], why=reading.fault, invalid=self._counts.invalid)

    def tick(self, now: float) -> None:
        """Say every minute what came through, if anything did."""
        if now - self._said_at < EVERY_SECONDS:
            return
        self._said_at, before, self._said = now, self._said, asdict(self._counts)
        if self._said != before:
            log.info("bridged", **self._said)

    def ended(self, seconds: float, error: BaseException | None) -> None:
        """Say what was done in all; what went wrong is put into words by the edge."""
        done = asdict(self._counts) | {"seconds": seconds}
        if error is None:
            log.info("bridge ended", **done)
        else:
            code = error.code if isinstance(error, WindrowError) else type(error).__name__
            log.error("bridge failed", code=code, **done)

"""The figures of a bridge, which grow while it runs, and the log lines about them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from windrow.errors import WindrowError
from windrow.operate.log import log

PLACES = {"broker", "client_id", "group", "depot", "seconds"}


@dataclass(slots=True)
class MqttStats:
    """Counts of MQTT messages: received, invalid among these, committed to the depot, acknowledged to the broker."""

    broker: str
    client_id: str
    depot: str
    connections: int = 0
    received: int = 0
    redelivered: int = 0
    committed: int = 0
    invalid: int = 0
    acknowledged: int = 0
    depot_version: int | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class KafkaStats:
    """Counts of a worker: `partitions` is how many it has, `lag` how many of their offsets the depot does not have."""

    broker: str
    group: str
    depot: str
    partitions: int = 0
    received: int = 0
    committed: int = 0
    invalid: int = 0
    lag: int = 0
    depot_version: int | None = None
    seconds: float = 0.0


def counts(figures: MqttStats | KafkaStats) -> dict[str, Any]:
    """Return the counts among the figures, as log lines show them."""
    return {name: value for name, value in asdict(figures).items() if name not in PLACES}


EVERY_SECONDS = 60.0


class BridgeLog:
    """Writes the log lines; of frequent events it writes the first one, and then one a minute."""

    def __init__(self, figures: MqttStats | KafkaStats, now: float) -> None:
        self._figures = figures
        self._logged = counts(figures)
        self._begun = self._logged_at = now
        self._warned_at: float | None = None

    def warn(self, event: str, now: float, **values: Any) -> None:
        """Warn of a frequent event: the first time, and then once a minute."""
        if self._warned_at is None or now - self._warned_at >= EVERY_SECONDS:
            self._warned_at = now
            log.warning(event, **values)

    def invalid(self, topic: str, why: str, now: float) -> None:
        """Warn of an invalid message."""
        self.warn("no message", now, topic=topic[:200], why=why, invalid=self._figures.invalid)

    def tick(self, now: float) -> None:
        """Log the counts every minute, if they have changed."""
        if now - self._logged_at < EVERY_SECONDS:
            return
        self._logged_at, before, self._logged = now, self._logged, counts(self._figures)
        if self._logged != before:
            log.info("bridged", **self._logged)

    @contextmanager
    def until_ended(self) -> Iterator[None]:
        """Log the totals when a run ends; the command prints its error itself."""
        try:
            yield
        except BaseException as error:
            code = error.code if isinstance(error, WindrowError) else type(error).__name__
            log.error("bridge failed", code=code, **self._totals())
            raise
        log.info("bridge ended", **self._totals())

    def _totals(self) -> dict[str, Any]:
        self._figures.seconds = round(time.monotonic() - self._begun, 3)
        return counts(self._figures) | {"seconds": self._figures.seconds}

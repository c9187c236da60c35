"""Observe runs: log, metrics and spans. Each is an observer; `windrow.run` also takes your own observers."""

from __future__ import annotations

from windrow.operate.observer import Lines, Observer, Observers, Run, observed
from windrow.settings.settings import MetricsPart

__all__ = ["Lines", "Observer", "Observers", "Run", "chosen", "observed"]


def chosen(metrics: MetricsPart) -> list[Observer]:
    """Return the observers that the settings ask for, the log first. Raises MissingExtraError, SettingsError."""
    observers: list[Observer] = [Lines()]
    if metrics.opentelemetry:
        from windrow.operate.spans import Spans

        observers.append(Spans())
    if metrics.textfile:
        from windrow.operate.metrics import Textfile

        observers.append(Textfile(metrics.textfile))
    if metrics.prometheus_port:
        from windrow.operate.metrics import Endpoint

        observers.append(Endpoint(metrics.prometheus_port))
    return observers

"""Observe runs: log, metrics, spans and lineage. Each is an observer; `windrow.run` also takes your own observers."""

from __future__ import annotations

from windrow.operate.observer import LogObserver, Observer, Observers, RunInfo, notify_observers
from windrow.settings.settings import MetricsSettings

__all__ = ["LogObserver", "Observer", "Observers", "RunInfo", "configured_observers", "notify_observers"]


def configured_observers(metrics: MetricsSettings) -> list[Observer]:
    """Return the observers that the settings request, the log first. Raises MissingExtraError, SettingsError."""
    observers: list[Observer] = [LogObserver()]
    if metrics.opentelemetry:
        from windrow.operate.spans import TraceSpans

        observers.append(TraceSpans())
    if metrics.openlineage:
        from windrow.operate.lineage import LineageEvents

        observers.append(LineageEvents())
    if metrics.textfile:
        from windrow.operate.metrics import Textfile

        observers.append(Textfile(metrics.textfile))
    if metrics.prometheus_port:
        from windrow.operate.metrics import MetricsServer

        observers.append(MetricsServer(metrics.prometheus_port))
    return observers

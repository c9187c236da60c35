"""What a run tells about itself: a log, metrics, spans. Each is an observer; write your own for `windrow.run`."""

from __future__ import annotations

from windrow.operate.log_lines import Lines
from windrow.operate.observer import Observer, Observers, Run, observed
from windrow.settings.settings import MetricsPart

__all__ = ["Lines", "Observer", "Observers", "Run", "chosen", "observed"]


def chosen(metrics: MetricsPart) -> list[Observer]:
    """Return the log, and what the settings ask for. Raises MissingExtra, or SettingsError for a port or file."""
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

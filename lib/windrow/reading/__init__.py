"""Read what `windrow status`, `show` and `plot` print, with delta-rs: no JVM, no engine, no batching code.

Nothing here writes. A query opens only the files of the states it names, and reads only the columns it needs.
"""

from __future__ import annotations

from windrow.model.timestamps import time_text
from windrow.reading.batcher_status import BatcherStatus, NeededDelay, count_waiting, status
from windrow.reading.details import batch, batches, rejection, rejections
from windrow.reading.distribution import Distribution, distribution
from windrow.reading.history import history
from windrow.reading.reasons import explain
from windrow.reading.status import Status
from windrow.reading.time_range import TimeRange, time_range
from windrow.reading.trace import Arrival, trace

__all__ = [
    "Arrival",
    "BatcherStatus",
    "Distribution",
    "NeededDelay",
    "Status",
    "TimeRange",
    "batch",
    "batches",
    "count_waiting",
    "distribution",
    "explain",
    "history",
    "rejection",
    "rejections",
    "status",
    "time_range",
    "time_text",
    "trace",
]

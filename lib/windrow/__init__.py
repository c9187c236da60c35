"""Windrow groups messages into batches, each message exactly once, on Delta Lake."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from windrow.version import VERSION

if TYPE_CHECKING:
    from windrow.batching.batched import BatchResult, BatchState, batch
    from windrow.batching.rules import Rules
    from windrow.producer import Buffer, Producer, RawProducer
    from windrow.reading.closed import ClosedBatches, read_closed, stream_closed
    from windrow.reading.digests import digests
    from windrow.reading.pivot import create_pivot_view, pivot
    from windrow.reading.tuning import tune
    from windrow.replaying import replay
    from windrow.runtime.foreach_batch import foreach_batch
    from windrow.runtime.run import run
    from windrow.settings.settings import Settings
    from windrow.topology import Topology, run_topology

__version__ = VERSION

_HOMES = {
    "BatchResult": "batching.batched",
    "BatchState": "batching.batched",
    "Buffer": "producer",
    "ClosedBatches": "reading.closed",
    "Producer": "producer",
    "RawProducer": "producer",
    "Rules": "batching.rules",
    "Settings": "settings.settings",
    "Topology": "topology",
    "batch": "batching.batched",
    "create_pivot_view": "reading.pivot",
    "digests": "reading.digests",
    "foreach_batch": "runtime.foreach_batch",
    "pivot": "reading.pivot",
    "read_closed": "reading.closed",
    "replay": "replaying",
    "run": "runtime.run",
    "run_topology": "topology",
    "stream_closed": "reading.closed",
    "tune": "reading.tuning",
}
__all__ = [
    "BatchResult",
    "BatchState",
    "Buffer",
    "ClosedBatches",
    "Producer",
    "RawProducer",
    "Rules",
    "Settings",
    "Topology",
    "batch",
    "create_pivot_view",
    "digests",
    "foreach_batch",
    "pivot",
    "read_closed",
    "replay",
    "run",
    "run_topology",
    "stream_closed",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Load each public name on first use, so that commands that need none of them start quickly."""
    if name not in _HOMES:
        raise AttributeError(f"module 'windrow' has no attribute {name!r}")
    return getattr(import_module(f"windrow.{_HOMES[name]}"), name)

"""Batching as the step of a microbatch: it adds messages to the open batches and closes overdue ones.

The kernel is imported only when there is something to decide, because loading its compiler is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching.columns import streams
from windrow.batching.rules import Rules
from windrow.columnar.arrow import encoded, text, to_numpy, where
from windrow.model import clock, tables
from windrow.model.floors import Floors, Ints
from windrow.model.messages import microseconds
from windrow.model.step import BatchFilter, StepResult, Task, no_streams

if TYPE_CHECKING:
    from windrow.batching.shard import Bools


@dataclass(frozen=True, slots=True)
class Batching:
    """The step that batches messages by `rules`."""

    rules: Rules

    @property
    def settings(self) -> str:
        """Return the rules as recorded in the history."""
        return self.rules.to_json()

    def __call__(self, task: Task, messages: pa.Table, processing_time: Ints, live: pa.Table) -> StepResult:
        """Return the batches that changed and the messages that the rules refused."""
        from windrow.batching.decision import decide, refused
        from windrow.batching.listing import listed

        batches = self._batches(live)
        if batches.num_rows and not task.flush:
            batches = where(batches, pa.array(self._concerned(batches, messages, task.floors.after)))
        version = to_numpy(messages["version"])
        decision = decide(
            messages,
            processing_time,
            version,
            batches,
            self.rules,
            task.floors.after.of,
            flush=task.flush,
            last=task.last,
        )
        batches, changed, known = listed(decision, task.microbatch)
        rows = np.arange(messages.num_rows)
        return StepResult(
            rows=where(batches, pa.array(changed)),
            known=pa.array(known[changed]),
            refusals=refused(decision, rows, processing_time),
            cuts=decision.cuts,
        )

    def wanted(self, floors: Floors, streams: Callable[[], pa.Table | None] = no_streams) -> BatchFilter:
        """Return which open batches can change at these floors, with messages of these streams."""
        ended = np.maximum(floors.floor, clock.UNKNOWN + self.rules.max_delay) - self.rules.max_delay
        return BatchFilter(streams, Floors(floors.source, ended))

    def due(self, ended: Floors) -> Floors:
        """Return the timeouts of the windows that end by `ended`."""
        return Floors(ended.source, ended.floor + self.rules.max_delay)

    def _concerned(self, batches: pa.Table, messages: pa.Table, floors: Floors) -> Bools:
        """Tell which open batches can change: their stream has messages, or their timeout has passed."""
        timeout = microseconds(batches["window_end"]) + self.rules.max_delay
        overdue: Bools = timeout <= floors.of(batches["source"].combine_chunks())
        source, key = (encoded(batches[name], messages[name]) for name in ("source", "key"))
        stream, count = streams(source, key)
        touched = np.zeros(count, np.bool_)
        touched[stream[batches.num_rows :]] = True
        return overdue | touched[stream[: batches.num_rows]]

    @staticmethod
    def _batches(live: pa.Table) -> pa.Table:
        return where(live.select(tables.BATCH), pc.equal(live["state"], text("open")))

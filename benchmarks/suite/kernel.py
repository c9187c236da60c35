"""The compiled kernel alone, on columns that are there already: million messages a second.

Timed is each call of `windrow.batching.kernel.decide` and nothing around it. The compiled original in Rust, from which
the rules come, did 6 to 11 million messages a second, and several times as many of one type in order as late; it was
measured elsewhere, so there is no ratio to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from benchmarks import streams
from benchmarks.conditions import Conditions
from benchmarks.row import Measurement, at_least, rate
from benchmarks.turns import Run, time_interleaved, timed
from windrow.batching import kernel
from windrow.batching.columns import by_stream, columns
from windrow.batching.rules import Rules
from windrow.batching.streams import decide_streams
from windrow.model import tables
from windrow.model.floors import Floors, processing_times
from windrow.model.messages import conform

LATE = 75_000  # microseconds


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Measure data like collectd's, and one type at two rates, in order and late."""
    count = conditions.size(1_000_000, 10_000)
    samples = {"like collectd, 100 streams of 60 types": streams.collectd(100, 60, conditions.size(300, 2))}
    for hertz in (1_000, 10_000):
        samples[f"one type at {hertz:,} Hz, in order"] = streams.one_stream(count, hertz, 1)
        samples[f"one type at {hertz:,} Hz, up to 75 ms late"] = streams.one_stream(count, hertz, 1, LATE)
    taken = time_interleaved(
        {name: deciding(data) for name, data in samples.items()}, conditions.rounds, tell=conditions.tell
    )
    for name, seconds in taken.items():
        yield rate(name, samples[name].num_rows, seconds, at_least(50) if "collectd" in name else None)


def deciding(messages: pa.Table) -> Run:
    """Return what calls the kernel on messages, and counts the call alone."""
    version = np.arange(messages.num_rows)
    versioned = conform(messages).append_column("version", pa.array(version))
    processing_time, floors = processing_times(versioned, Floors.empty())
    nothing = pa.schema(tables.batch_fields(pa.string())).empty_table()
    rows = by_stream(versioned, processing_time, version, nothing)
    sweep = floors.of(rows.source)
    all_streams = columns(rows, 0, len(rows.source))
    rules = Rules()

    def once() -> float:
        seconds: list[float] = []
        decide = kernel.decide

        def watched(*arrays: Any) -> int:
            count: list[int] = []
            seconds.append(timed(lambda: count.append(decide(*arrays))))
            return count[0]

        with patch.object(kernel, "decide", watched):
            decide_streams(rows, 0, all_streams, rules, sweep)
        return sum(seconds)

    return once

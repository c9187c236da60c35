"""`windrow.batch`, from an Arrow table with texts to batches: million messages a second."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import windrow
from benchmarks import streams
from benchmarks.conditions import Conditions
from benchmarks.row import Measurement, at_least, rate
from benchmarks.turns import time_interleaved, timed

OFTEN = 4  # rounds for one: each is a fraction of a second


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Measure data like collectd's: source, key, type and payload are texts."""
    messages = streams.collectd(100, 60, conditions.size(300, 2))
    batched = partial(timed, partial(windrow.batch, messages, windrow.Rules()))
    name = "like collectd, 100 streams of 60 types"
    taken = time_interleaved({name: batched}, OFTEN * conditions.rounds, warm_up=OFTEN, tell=conditions.tell)
    yield rate(name, messages.num_rows, taken[name], at_least(12))

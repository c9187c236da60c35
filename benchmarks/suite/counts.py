"""What a microbatch of a thousand messages on Spark asks for, counted: with much open, and behind a long history.

None of it may grow with what is open or with what was: rows through the driver, Spark's jobs and stages, entries of
Delta's logs that are read, files that are opened, directories that are listed (how: `benchmarks/counting.py`).
The messages are of a hundred devices. With much open, all of them are on the executors' way, on either ledger, and the
open batches are those of other streams. A history is as many versions of a message each, in a depot that a producer
made, and as many microbatches of the embedded engine; behind it the settings are the default. Counts are medians over
as many microbatches as lie between two checkpoints of a log, so that each age of a checkpoint is among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa

import windrow
from benchmarks import ledgers
from benchmarks.conditions import Conditions
from benchmarks.counting import OperationCounts, counted
from benchmarks.microbatches import settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_most
from windrow.model.messages import conform

WARM_UP = 2
CHECKPOINT = 10  # commits, as in a ledger's properties
NAMES = {
    "rows": "rows through the driver",
    "jobs": "jobs",
    "stages": "stages",
    "log_entries": "log entries read",
    "files": "files opened",
    "listings": "directories listed",
}


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Count with few and many open batches, then behind a short and a long history."""
    yield from by_state(conditions)
    yield from by_history(conditions)


def by_state(conditions: Conditions) -> Iterator[Measurement]:
    """Count on the executors' way, with few and with many open batches."""
    few, many = conditions.size(1_000, 20), conditions.size(100_000, 400)
    spark = conditions.spark()
    chosen = {}
    for count in (few, many):
        conditions.tell(f"{count:,} open batches")
        depot, ledger = (conditions.directory / f"{kind}-{count}" for kind in ("depot", "ledger"))
        ledgers.build(spark, depot, ledger, count)
        chosen[count] = settings(depot, ledger, spark, max_driver_messages=0, **ledgers.OPEN)
    taken = {
        count: microbatches(conditions, ledger_settings, f"{count:,} open") for count, ledger_settings in chosen.items()
    }
    yield from compared(taken[many], f"{many:,} open", taken[few], f"{few:,} open")


def by_history(conditions: Conditions) -> Iterator[Measurement]:
    """Count with the default settings, behind few and behind many versions of depot and ledger."""
    short, long = conditions.size(10, 2), conditions.size(600, 24)
    spark = conditions.spark()
    taken = {}
    for count in (short, long):
        depot, ledger = (conditions.directory / f"{kind}-behind-{count}" for kind in ("depot", "ledger"))
        conditions.tell(f"{count:,} versions")
        with windrow.Producer(str(depot), "history") as producer:
            for number in range(count):
                producer.send_many(conform(inputs.generated(1, first=number))).result()
        windrow.run(settings(depot, ledger, max_messages=1, idle_timeout="never"))
        chosen = settings(depot, ledger, spark, idle_timeout="never")
        taken[count] = microbatches(conditions, chosen, f"behind {count:,}", conform)
    yield from compared(taken[long], f"behind {long:,} versions", taken[short], f"behind {short:,} versions")


def microbatches(
    conditions: Conditions,
    chosen: windrow.Settings,
    label: str,
    shaped: Callable[[pa.Table], pa.Table] = lambda messages: messages,
) -> list[OperationCounts]:
    """Return what each of some microbatches asks for; messages are `shaped` as the depot has them."""
    spark, size = conditions.spark(), conditions.size(1_000, 50)
    warm_up, rounds = conditions.size(WARM_UP, 1), conditions.size(CHECKPOINT, 2)
    places = (Path(chosen.depot), Path(chosen.ledger))
    run = partial(windrow.run, chosen, spark=spark)
    counts = []
    for number in range(warm_up + rounds):
        conditions.tell(f"{label}: microbatch {number + 1} of {warm_up + rounds}")
        inputs.write(places[0], shaped(inputs.generated(size, first=10_000 + number * size)), 1)
        counts.append(counted(spark, places, run))
    return counts[warm_up:]


def compared(
    ours: list[OperationCounts], name: str, theirs: list[OperationCounts], against: str
) -> Iterator[Measurement]:
    """Return a row for each figure; what is not asked for at all counts as asked for once, so that there is a ratio."""
    for field in fields(OperationCounts):
        own, other = medians(ours)[field.name], medians(theirs)[field.name]
        ratio = max(own, 1) / max(other, 1)
        yield Measurement(f"{NAMES[field.name]}, {name}", own, "", against, other, ratio, "count", at_most(1.1))


def medians(counts: list[OperationCounts]) -> Mapping[str, float]:
    """Return the median of each figure."""
    return {field.name: median(getattr(count, field.name) for count in counts) for field in fields(OperationCounts)}

"""Read the status of a batcher: that of its ledger, plus rules, clocks, batches and rejections."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.delta.locations import local_path
from windrow.delta.table import open_table
from windrow.errors import TableMissingError
from windrow.model.durations import SECOND, to_toml
from windrow.model.timestamps import time_text
from windrow.reading.log import waiting_versions
from windrow.reading.status import DepotPlace, Status, common_status, one_row
from windrow.reading.tables import Ledger, equal, open_ledger, recorded_rules
from windrow.reading.values import records
from windrow.reading.warnings import RecentRows, recent_rows


@dataclass(frozen=True, slots=True)
class SourceClock:
    """The clock of a source (greatest processing time of its data), its floor, and when its last data was read."""

    source: str
    clock: str
    floor: str
    seen_at: str


@dataclass(frozen=True, slots=True)
class OldestBatch:
    """The open batch whose window began first.

    It closes when the `floor` of its source reaches `timeout_at`, which is `remaining_seconds` away.
    """

    id: str
    source: str
    key: str
    window_start: str
    timeout_at: str
    floor: str
    remaining_seconds: float


@dataclass(frozen=True, slots=True)
class OpenBatchStatus:
    """How many batches are open, and how many messages they hold.

    `oldest_age_seconds` is the time since the start of the oldest open window, by the idle clock of its source: in a
    backfill of last year's messages it is seconds, not a year.
    """

    batch_count: int
    message_count: int
    oldest: OldestBatch | None
    oldest_age_seconds: float


@dataclass(frozen=True, slots=True)
class ClosedBatches:
    """How many batches are closed, and how many messages they hold."""

    batch_count: int
    message_count: int


@dataclass(frozen=True, slots=True)
class Rejections:
    """The messages rejected for a reason, and the most by which one missed the limit."""

    reason: str
    message_count: int
    missed_by_us: int


@dataclass(frozen=True, slots=True)
class NeededDelay:
    """The `max_delay` in force, and the values that would have kept every message rejected as too old.

    In microseconds; `required_max_delay_us` is None and `by_source` empty when no message was too old. Only messages
    read since rules and mapping last changed count, except the `left_out` ones, whose clocks are wrong: they are a
    month old, or nearly all messages of their source were rejected.
    """

    max_delay_us: int
    required_max_delay_us: int | None
    by_source: dict[str, int]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A partition: the offset up to which the depot has it (None: nothing yet), where it ends, and the difference."""

    topic: str
    partition: int
    depot_offset: int | None
    end_offset: int
    lag: int


@dataclass(frozen=True, slots=True)
class KafkaLag:
    """How many offsets of a group's topics the depot lacks, as the broker reported at `measured_at`."""

    brokers: str
    group: str
    measured_at: str
    lag: int
    partitions: tuple[PartitionLag, ...]


@dataclass(frozen=True, slots=True)
class BatcherStatus(Status):
    """The status of a batcher. `kafka` is there only if the broker was asked."""

    rules: dict[str, Any]
    clocks: tuple[SourceClock, ...]
    open: OpenBatchStatus
    closed: ClosedBatches
    rejections: tuple[Rejections, ...]
    hints: tuple[str, ...]
    needed_delay: NeededDelay
    kafka: KafkaLag | None = None


def status(depot: str, ledger: str, now: int) -> BatcherStatus:
    """Read the status of a ledger at wall time `now` (microseconds).

    Raises TableMissingError, IncompatibleTableError for a table that is not a ledger, DepotMismatchError for a depot
    that the ledger does not read.
    """
    book = open_ledger(ledger)
    progress = book.progress()
    with recent_rows(book) as recent:
        hints, needed = tuple(map(str, recent.warnings())), _needed_delay(recent, progress.max_delay_us)
    return BatcherStatus(
        **common_status(book, {None: DepotPlace(depot)}, now),
        rules=to_toml(recorded_rules(progress.rules)),
        clocks=tuple(SourceClock(**row) for row in records(book.rows("progress", CLOCKS, OF_SOURCE, BY_SOURCE))),
        open=_open(book, progress.max_delay_us, now),
        closed=ClosedBatches(**one_row(book, "closed", BATCHES)),
        rejections=tuple(Rejections(**row) for row in records(book.rows("rejected", REJECTED, rest=BY_REASON))),
        hints=hints,
        needed_delay=needed,
    )


def count_waiting(depot: str, ledger: str) -> int | None:
    """Return how many messages wait, according to the log of a local depot; None if depot or row count is missing."""
    if local_path(depot) is None or local_path(ledger) is None:
        return None
    with suppress(TableMissingError):
        log, read = open_table(depot, "depot"), -1
        with suppress(TableMissingError):
            read = open_ledger(ledger).progress().depot_version
        return waiting_versions(log, read).message_count
    return None


CLOCKS, OF_SOURCE, BY_SOURCE = "source, clock, floor, seen_at", "source IS NOT NULL", "ORDER BY source"
BATCHES = "count(*) AS batch_count, coalesce(sum(message_count), 0) AS message_count"
REJECTED = "reason, count(*) AS message_count, coalesce(max(missed_by_us), 0) AS missed_by_us"
BY_REASON = "GROUP BY reason ORDER BY message_count DESC, reason"
LATE = """
SELECT source, count(*) AS messages, max(age) FILTER (WHERE age <= {oldest}) AS needed,
    count(*) FILTER (WHERE age <= {oldest}) AS counted
FROM (SELECT coalesce(source, '') AS source, {age} AS age
    FROM {batch} WHERE state = 'rejected' AND reason = 'too_old' AND microbatch > {since}) AS late
GROUP BY source ORDER BY source
"""


def _open(book: Ledger, max_delay: int, now: int) -> OpenBatchStatus:
    """Return the open batches; timeouts follow the rules in force, even if a row was written under others."""
    idle = f"max(epoch_us(clock) + greatest(0, {now:d} - epoch_us(seen_at)))"  # the idle clock of a source
    age = f"{idle} - min(epoch_us(window_start)) AS age"
    oldest, seconds = _oldest(book, max_delay), 0.0
    if oldest is not None:
        by_source = book.rows(("open", "progress"), age, OF_SOURCE, "GROUP BY source")
        seconds = max(0, pc.max(by_source["age"]).as_py() or 0) / SECOND
    return OpenBatchStatus(**one_row(book, "open", BATCHES), oldest=oldest, oldest_age_seconds=seconds)


def _oldest(book: Ledger, max_delay: int) -> OldestBatch | None:
    timeout_at = f"make_timestamptz(epoch_us(window_end) + {max_delay}) AS timeout_at"
    first = book.rows("open", f"id, source, key, window_start, {timeout_at}", rest="ORDER BY window_start, id LIMIT 1")
    if not first.num_rows:
        return None
    [row] = records(first)
    clock = book.rows("progress", "floor", equal({"source": row["source"]}))
    [[due], [floor]] = (times.cast(pa.int64()).to_pylist() for times in (first["timeout_at"], clock["floor"]))
    return OldestBatch(**row, floor=time_text(floor), remaining_seconds=max(0, due - floor) / SECOND)


def _needed_delay(recent: RecentRows, max_delay: int) -> NeededDelay:
    """Return which `max_delay` would have kept the messages that were too old under the one in force."""
    late = recent.beyond(LATE)
    if not late:
        return NeededDelay(max_delay, None, {})
    wrong = set(recent.wrong_clocks())
    right = [row for row in late if row["source"] not in wrong]
    by_source = {row["source"]: row["needed"] for row in right if row["needed"] is not None}
    left_out = sum(row["messages"] for row in late) - sum(row["counted"] for row in right)
    return NeededDelay(max_delay, max(by_source.values(), default=None), by_source, left_out)

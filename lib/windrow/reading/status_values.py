"""The values of a status: their fields are those of `windrow status --json`.

Times are ISO 8601 text in UTC; the name of a number ends in its unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DepotState:
    """How far the depot was read. `messages_waiting` is None when its log does not record it.

    `changed_version` is the first unread version that removed or changed rows, which stops a run unless it ignores it.
    `accepted_versions` changed rows too; runs went past them and read none of their rows.
    """

    path: str
    version: int
    read_version: int
    versions_waiting: int
    messages_waiting: int | None
    oldest_waiting_version: int | None
    oldest_waiting_at: str | None
    changed_version: int | None
    accepted_versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """Which ledger it is."""

    path: str
    version: int
    start_from: str
    paused: bool


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the ledger is behind: the messages waiting, and the seconds since the oldest was committed."""

    messages: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class SourceClock:
    """The clock of a source (greatest processing time of its data), its floor, and when its last data was read."""

    source: str
    clock: str
    floor: str
    seen_at: str


@dataclass(frozen=True, slots=True)
class OldestBatch:
    """The open batch whose window began first."""

    id: str
    source: str
    key: str
    window_start: str
    timeout: str


@dataclass(frozen=True, slots=True)
class OpenBatches:
    """How many batches are open, and how many messages they hold.

    `oldest_seconds` is the time since the start of the oldest open window, by the idle clock of its source: in a
    backfill of last year's messages it is seconds, not a year.
    """

    batches: int
    messages: int
    oldest: OldestBatch | None
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class ClosedBatches:
    """How many batches are closed, and how many messages they hold."""

    batches: int
    messages: int


@dataclass(frozen=True, slots=True)
class Rejections:
    """The messages rejected for a reason, and the most by which one of them missed."""

    reason: str
    messages: int
    missed_by_us: int


@dataclass(frozen=True, slots=True)
class TooOld:
    """The messages of a source that were too old; for `raised` of them the floor had raised the processing time.

    `needed_delay_us` is the `max_delay` that would have kept all of them.
    """

    source: str
    messages: int
    missed_by_us: int
    raised: int
    needed_delay_us: int


@dataclass(frozen=True, slots=True)
class NeededDelay:
    """The `max_delay` in force, and those that would have kept every message rejected as too old so far.

    In microseconds; `needed_us` is None and `by_source` empty when no message was too old. `quantiles_us` says how much
    half, 0.9 and 0.99 of these messages needed, since rules and mapping last changed and without wrong clocks.
    """

    max_delay_us: int
    needed_us: int | None
    by_source: dict[str, int]
    quantiles_us: dict[str, int]


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of the history."""

    microbatches: int
    messages: int
    accepted: int
    rejected: int
    opened: int
    closed: int


@dataclass(frozen=True, slots=True)
class MicrobatchRow:
    """One microbatch of the history."""

    microbatch: int
    kind: str
    attempt: int
    depot_version: int
    messages: int
    accepted: int
    rejected: int
    opened: int
    closed: int
    engine: str
    path: str
    started_at: str
    prime_ms: float
    plan_ms: float
    process_ms: float


@dataclass(frozen=True, slots=True)
class Reach:
    """The earliest versions of depot and ledger that can still be read, and how long each keeps removed files."""

    depot_version: int
    ledger_version: int
    depot_keep: str | None
    ledger_keep: str | None


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
    """How many offsets of a group's topics the depot does not have, as the broker said at `measured_at`."""

    brokers: str
    group: str
    measured_at: str
    lag: int
    partitions: tuple[PartitionLag, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that `windrow status` prints. `microbatches` begins with the latest.

    `kafka` is there only if the broker was asked.
    """

    depot: DepotState
    ledger: LedgerFigures
    lag: Lag
    rules: dict[str, Any]
    clocks: tuple[SourceClock, ...]
    open: OpenBatches
    closed: ClosedBatches
    rejected: tuple[Rejections, ...]
    too_old: tuple[TooOld, ...]
    totals: Totals
    microbatches: tuple[MicrobatchRow, ...]
    reach: Reach
    hints: tuple[str, ...]
    needed_delay: NeededDelay
    kafka: KafkaLag | None = None

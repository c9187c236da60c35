"""Read the status of a ledger: what was read, what waits, clocks, batches, rejections, the last microbatches."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from windrow.delta.locations import local_path
from windrow.delta.table import open_table
from windrow.errors import TableMissing
from windrow.model.durations import in_words
from windrow.model.timestamps import time_text
from windrow.model.warn import WarnPart
from windrow.reading.log import earliest_readable, kept, waiting_versions
from windrow.reading.status_values import (
    ClosedBatches,
    DepotState,
    Lag,
    LedgerFigures,
    MicrobatchRow,
    NeededDelay,
    OldestBatch,
    OpenBatches,
    Reach,
    Rejections,
    SourceClock,
    Status,
    TooOld,
    Totals,
)
from windrow.reading.tables import (
    DepotTable,
    Ledger,
    Progress,
    accepted_versions,
    ledger_log,
    open_depot,
    open_ledger,
    recorded_rules,
)
from windrow.reading.values import records
from windrow.reading.warnings import statement, warnings_of

LAST_MICROBATCHES = 10


def status(depot: str, ledger: str, now: int, limits: WarnPart | None = None) -> Status:
    """Read the status of a ledger at wall time `now` (microseconds), with hints by the `limits` of `[warn]`.

    Raises TableMissing, TableRefused for a table that is not a ledger, OtherDepot for a depot that is not its own.
    """
    book = open_ledger(ledger)
    progress = book.progress()
    log, own = open_depot(depot, book, progress), ledger_log(book)
    state, lag = _depot(log, depot, book, progress, now)
    refused = _refused(book)
    too_old = _too_old(refused)
    clocks = _clocks(book)
    said = warnings_of(book, limits or WarnPart())
    return Status(
        depot=state,
        ledger=LedgerFigures(ledger, book.version, progress.start_from, progress.paused),
        lag=lag,
        rules=in_words(recorded_rules(progress.rules)),
        clocks=clocks,
        open=_open(book, progress.max_delay_us, now),
        closed=ClosedBatches(**_one(book, "closed", BATCHES)),
        rejected=_by_reason(refused),
        too_old=too_old,
        totals=Totals(**_one(book, "microbatch", TOTALS)),
        microbatches=_last(book, progress.microbatch),
        reach=Reach(earliest_readable(log, depot=True), earliest_readable(own), kept(log), kept(own)),
        hints=tuple(map(str, said)),
        needed_delay=_needed(book, progress.max_delay_us, too_old, limits or WarnPart()),
    )


def waiting(depot: str, ledger: str) -> int | None:
    """Return how many messages wait, by the log of a local depot; None if the depot or the number is missing."""
    if local_path(depot) is None or local_path(ledger) is None:
        return None
    try:
        log = open_table(depot, "depot")
    except TableMissing:
        return None
    try:
        read = open_ledger(ledger).progress().depot_version
    except TableMissing:
        read = -1
    return waiting_versions(log, read).messages


BATCHES = "count(*) AS batches, coalesce(sum(message_count), 0) AS messages"
TOTALS = "count(*) AS microbatches, coalesce(sum(messages_read), 0) AS messages, " + ", ".join(
    f"coalesce(sum({name}), 0) AS {name}" for name in ("accepted", "rejected", "opened", "closed")
)
HISTORY = ", ".join(
    "messages_read AS messages" if name == "messages" else name for name in MicrobatchRow.__dataclass_fields__
)
# The age of a message when it was processed, which the rule compares with max_delay.
AGE = "CAST(processing_time AS BIGINT) - CAST(event_time AS BIGINT)"
QUANTILES = """
SELECT approx_percentile_cont(needed, 0.5) AS "0.5", approx_percentile_cont(needed, 0.9) AS "0.9",
    approx_percentile_cont(needed, 0.99) AS "0.99"
FROM (SELECT CAST(processing_time AS BIGINT) - CAST(event_time AS BIGINT) AS needed
    FROM {batch} WHERE state = 'rejected' AND reason = 'too_old' AND {counted}) AS late
"""


def _depot(log: DepotTable, path: str, book: Ledger, progress: Progress, now: int) -> tuple[DepotState, Lag]:
    waits = waiting_versions(log, progress.depot_version)
    since = waits.committed_at
    state = DepotState(
        path=path,
        version=log.version(),
        read_version=progress.depot_version,
        versions_waiting=waits.versions,
        messages_waiting=waits.messages,
        oldest_waiting_version=waits.oldest,
        oldest_waiting_at=None if since is None else time_text(since),
        changed_version=waits.changed,
        accepted_versions=accepted_versions(book),
    )
    return state, Lag(waits.messages, 0.0 if since is None else max(0, now - since) / 1_000_000)


def _one(book: Ledger, state: str, columns: str) -> dict[str, Any]:
    return dict(records(book.rows(state, columns))[0])


def _clocks(book: Ledger) -> tuple[SourceClock, ...]:
    rows = book.rows("progress", "source, clock, floor, seen_at", "source IS NOT NULL", "ORDER BY source")
    return tuple(SourceClock(**row) for row in records(rows))


def _open(book: Ledger, max_delay: int, now: int) -> OpenBatches:
    """Return the open batches; timeouts follow the rules in force, even if a row was written under others."""
    timeout = f"window_end + INTERVAL '{max_delay} microseconds' AS timeout"
    first = book.rows("open", f"id, source, key, window_start, {timeout}", rest="ORDER BY window_start, id LIMIT 1")
    oldest = [OldestBatch(**row) for row in records(first)]
    seconds = _open_for(book, now) / 1_000_000 if oldest else 0.0
    return OpenBatches(**_one(book, "open", BATCHES), oldest=oldest[0] if oldest else None, oldest_seconds=seconds)


def _open_for(book: Ledger, now: int) -> int:
    """Return the time since the start of the oldest open window, by the idle clock of its source (microseconds)."""
    idle = f"max(CAST(clock AS BIGINT) + greatest(0, {now:d} - CAST(seen_at AS BIGINT)))"
    begun = "min(CAST(window_start AS BIGINT))"
    by_source = book.rows(("open", "progress"), f"{idle} - {begun} AS age", "source IS NOT NULL", "GROUP BY source")
    return max(0, pc.max(by_source["age"]).as_py() or 0)


def _refused(book: Ledger) -> list[dict[str, Any]]:
    columns = (
        "reason, source, count(*) AS messages, max(missed_by_us) AS missed_by_us, "
        f"count(*) FILTER (WHERE clock_lead_us > 0) AS raised, max({AGE}) AS needed_delay_us"
    )
    return records(book.rows("rejected", columns, rest="GROUP BY reason, source ORDER BY reason, source"))


def _by_reason(refused: list[dict[str, Any]]) -> tuple[Rejections, ...]:
    reasons: dict[str, Rejections] = {}
    for row in refused:
        known = reasons.get(row["reason"], Rejections(row["reason"], 0, 0))
        furthest = max(known.missed_by_us, row["missed_by_us"])
        reasons[row["reason"]] = Rejections(row["reason"], known.messages + row["messages"], furthest)
    return tuple(sorted(reasons.values(), key=lambda one: (-one.messages, one.reason)))


def _too_old(refused: list[dict[str, Any]]) -> tuple[TooOld, ...]:
    names = TooOld.__dataclass_fields__
    return tuple(TooOld(**{name: row[name] for name in names}) for row in refused if row["reason"] == "too_old")


def _needed(book: Ledger, max_delay: int, too_old: tuple[TooOld, ...], limits: WarnPart) -> NeededDelay:
    """Return which `max_delay` would have kept the messages that were too old under the one in force."""
    by_source = {row.source: row.needed_delay_us for row in too_old}
    shares = {}
    if by_source:
        [row] = book.ask(statement(QUANTILES, limits, "ledger")).to_pylist()
        shares = {share: round(needed) for share, needed in row.items() if needed is not None}
    return NeededDelay(max_delay, max(by_source.values(), default=None), by_source, shares)


def _last(book: Ledger, reached: int) -> tuple[MicrobatchRow, ...]:
    recent = f"microbatch > {reached - LAST_MICROBATCHES}"
    return tuple(MicrobatchRow(**row) for row in records(book.rows("microbatch", HISTORY, recent, "ORDER BY 1 DESC")))

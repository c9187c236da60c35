"""Read single batches and rejections as JSON values; for an open batch, why it is open and when it will close."""

from __future__ import annotations

import re
from typing import Any, Literal

from windrow.errors import NotFoundError
from windrow.model import durations, tables
from windrow.model.timestamps import time_text
from windrow.reading.tables import Ledger, equal, open_ledger, overlap_condition, quote_text, time_literal
from windrow.reading.values import records

IDLE_TIMEOUT = 10_000_000
ID = re.compile(r"batch/[^/]*/[^/]*/(?P<start>-?\d+)/\d+")

START = "epoch_us(window_start)"


def batch(ledger: str, id: str, idle_timeout: int | None = IDLE_TIMEOUT) -> dict[str, Any]:  # noqa: A002 - the column
    """Return a batch with its messages; an open batch also has `closing`, which says what it waits for.

    `idle_timeout` is the setting, in microseconds (None: never). Raises NotFoundError, TableMissingError,
    IncompatibleTableError.
    """
    book = open_ledger(ledger)
    parts = ID.fullmatch(id)
    if not parts:
        raise NotFoundError(f"{id!r} is not the id of a batch", "An id looks like batch/SOURCE/KEY/WINDOW_START/PART.")
    start = int(parts["start"])  # lets the query skip files
    where = f"id = {quote_text(id)} AND window_start = {time_literal(start)}"
    rows = _read(book, ("open", "closed"), where)
    if not rows:
        stream = f"starts_with(id, {quote_text(id.rsplit('/', 2)[0] + '/')})"
        raise NotFoundError(f"there is no batch {id}", nearest_batch(book, stream, start))
    return _explain_closing(book, rows, idle_timeout)[0]


def batches(
    ledger: str,
    state: Literal["open", "closed"],
    key: str | None = None,
    source: str | None = None,
    limit: int = 20,
    idle_timeout: int | None = IDLE_TIMEOUT,
    start: int | None = None,
    end: int | None = None,
) -> list[dict[str, Any]]:
    """Return batches with their messages: open ones earliest window first, closed ones latest first.

    Their windows overlap the event times [start, end) (microseconds). Raises TableMissingError, IncompatibleTableError.
    """
    book = open_ledger(ledger)
    start = None if start is None else start + 1  # the end of a window is not inside
    where = f"{equal({'key': key, 'source': source})} AND {overlap_condition('window_start', 'window_end', start, end)}"
    order = "ORDER BY window_start, id" if state == "open" else "ORDER BY window_start DESC, id"
    chosen = records(book.rows(state, f"id, {START} AS start", where, f"{order} LIMIT {limit:d}"))
    if not chosen:
        return []
    starts = [row["start"] for row in chosen]
    among = ", ".join(quote_text(row["id"]) for row in chosen)
    where = f"id IN ({among}) AND window_start BETWEEN {time_literal(min(starts))} AND {time_literal(max(starts))}"
    return _explain_closing(book, _read(book, state, where, order), idle_timeout)


def rejection(ledger: str, id: str) -> dict[str, Any]:  # noqa: A002 - the column
    """Return a rejected message, or a record or chunk that the format refused.

    In the ledger of a raw depot it also has `raw_source`, `chunk`, `offset` and `content`, NULL for a message. Raises
    NotFoundError, TableMissingError, IncompatibleTableError.
    """
    book = open_ledger(ledger)
    rows = records(book.rows("rejected", _rejected_columns(book), f"id = {quote_text(id)}"))
    if not rows:
        raise NotFoundError(f"there is no rejected message {id}", "`windrow show --rejected` lists them.")
    return rows[0]


def rejections(
    ledger: str,
    key: str | None = None,
    reason: str | None = None,
    source: str | None = None,
    limit: int = 20,
    start: int | None = None,
    end: int | None = None,
) -> list[dict[str, Any]]:
    """Return rejections as `rejection` does, the latest first, with an event time in [start, end) (microseconds).

    Raises TableMissingError, IncompatibleTableError.
    """
    order = f"ORDER BY microbatch DESC, received_at DESC NULLS LAST, id LIMIT {limit:d}"
    book = open_ledger(ledger)
    same = equal({"key": key, "reason": reason, "source": source})
    where = f"{same} AND {overlap_condition('event_time', 'event_time', start, end)}"
    return records(book.rows("rejected", _rejected_columns(book), where, order))


def _rejected_columns(book: Ledger) -> str:
    names = [*tables.REJECTED, *(tables.RAW_REJECTED if book.raw else ())]
    return ", ".join(f'"{name}"' for name in names)


def _read(book: Ledger, states: str | tuple[str, ...], where: str, order: str = "") -> list[dict[str, Any]]:
    return records(book.rows(states, ", ".join(tables.BATCH_COLUMNS), where, order))


def nearest_batch(book: Ledger, where: str, at: int) -> str:
    """Name the batch nearest to an event time (microseconds) among those that meet an SQL condition."""
    apart = f"greatest({START} - {at:d}, {at:d} - epoch_us(window_end), 0)"
    names = "id, window_start, window_end"
    rows = records(book.rows(("open", "closed"), names, where, f"ORDER BY {apart}, id LIMIT 1"))
    if not rows:
        return "Its stream has no batches in this ledger."
    return "Its nearest batch is {id}, {window_start} to {window_end}.".format(**rows[0])


def _explain_closing(book: Ledger, rows: list[dict[str, Any]], idle_timeout: int | None) -> list[dict[str, Any]]:
    """Add `closing` to open batches: what they wait for."""
    waiting = [row for row in rows if row["state"] == "open"]
    if not waiting:
        return rows
    columns = ", ".join(f"epoch_us({name}) AS {name}" for name in ("clock", "floor", "seen_at"))
    clocks = book.rows("progress", f"source, {columns}", "source IS NOT NULL").to_pylist()
    clock_of = {row["source"]: row for row in clocks}
    delay = book.progress().max_delay_us
    ends = book.rows("open", "id, epoch_us(window_end) AS window_end").to_pylist()
    timeouts = {row["id"]: row["window_end"] + delay for row in ends}
    for row in waiting:
        row["timeout_at"] = time_text(timeouts[row["id"]])
        row["closing"] = _closing(timeouts[row["id"]], clock_of[row["source"]], idle_timeout)
    return rows


def _closing(timeout: int, clock: dict[str, int], idle_timeout: int | None) -> dict[str, Any]:
    """Say what an open batch waits for: the clock of its source, or the idle tick after `idle_timeout`."""
    missing = timeout - clock["floor"]
    idle_at = None if idle_timeout is None else clock["seen_at"] + max(0, timeout + idle_timeout - clock["clock"])
    if missing > 0:
        stands = f"the clock of its source stands at {time_text(clock['floor'])}"
        why = f"it waits for {time_text(timeout)}, and {stands}, which is {durations.approximate_text(missing)} before"
        when = f"with the first message of its source whose received_at is {time_text(timeout)} or later"
    else:
        why = "the clock of its source has passed the timeout since the last microbatch"
        when = "with the next microbatch"
    if idle_at is not None:
        when += f"; without one, when `windrow run` finds nothing new from {time_text(idle_at)} on"
    return {
        "reason": why,
        "closes": when,
        "floor": time_text(clock["floor"]),
        "remaining_seconds": missing / 1_000_000,
        "idle_tick_at": None if idle_at is None else time_text(idle_at),
    }

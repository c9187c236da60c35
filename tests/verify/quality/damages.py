"""For each invariant that always holds, a way to damage a ledger so that it does not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tests.engine.world import World
from tests.messages import Row
from windrow.model import tables
from windrow.reading.tables import open_ledger

Rows = list[Row]
Damage = Callable[[Rows], Rows | None]
SECOND = timedelta(seconds=1)


def damage(world: World, change: Damage) -> None:
    """Replace the rows of a ledger by what `change` makes of them; None: it changed them in place."""
    states = (tables.OPEN, *tables.CONTROL, *tables.FINAL)
    rows = open_ledger(world.ledger).rows(states, "*", rest="ORDER BY id").to_pylist()
    changed = change(rows) or rows
    write_deltalake(
        world.ledger,
        pa.Table.from_pylist(changed, tables.ledger_schema(world.payload, raw=world.raw)),
        mode="overwrite",
    )


def first(rows: Rows, state: str, where: Callable[[Row], Any] = bool) -> Row:
    """Return the first row of a state for which `where` holds."""
    return next(row for row in rows if row["state"] == state and where(row))


def setting(state: str, where: Callable[[Row], Any] = bool, **values: Any) -> Damage:
    """Return what sets columns of the first such row; a value may be a function of the row."""

    def change(rows: Rows) -> None:
        row = first(rows, state, where)
        row.update({name: value(row) if callable(value) else value for name, value in values.items()})

    return change


def dropping(state: str, most: int = 1) -> Damage:
    """Return what drops the first rows of a state."""

    def change(rows: Rows) -> Rows:
        gone = [row["id"] for row in rows if row["state"] == state][:most]
        return [row for row in rows if row["id"] not in gone]

    return change


def copying(state: str, where: Callable[[Row], Any] = bool) -> Damage:
    """Return what puts a row there twice."""
    return lambda rows: [*rows, dict(first(rows, state, where))]


def many(row: Row) -> bool:
    """Tell a batch with messages of several times."""
    return bool(row["first_event_time"] != row["last_event_time"])


def control(row: Row) -> bool:
    """Tell the progress row from those of sources."""
    return bool(row["id"] == tables.PROGRESS)


def because(reason: str) -> Callable[[Row], bool]:
    """Return what tells the messages that were rejected for a reason."""
    return lambda row: bool(row["reason"] == reason)


def lose(rows: Rows) -> None:
    """Take a message out of a closed batch, which then agrees with itself."""
    row = first(rows, "closed", many)
    gone = row["messages"].pop()
    row["message_count"] -= 1
    row["bytes"] -= len(gone["type"]) + len(gone["payload"] or "")
    row["last_event_time"] = row["messages"][-1]["event_time"]


def repeat(rows: Rows) -> None:
    """Put a message of one batch into another one of its stream as well."""
    giver = first(rows, "closed")
    taker = first(rows, "closed", lambda row: row["id"] != giver["id"])
    taker["messages"].append(giver["messages"][0])
    taker |= {"source": giver["source"], "key": giver["key"]}


def retype(rows: Rows) -> None:
    """Give a batch two messages of one type."""
    messages = first(rows, "closed", many)["messages"]
    messages[1]["type"] = messages[0]["type"]


def reread(rows: Rows) -> None:
    """Say of a version that a later microbatch read it as well."""
    early, late = [row for row in rows if row["state"] == "microbatch" and row["versions"]][:2]
    late["versions"].append(early["versions"][0])


def relist(rows: Rows) -> None:
    """List a version with one message more."""
    first(rows, "microbatch", lambda row: row["versions"])["versions"][0]["messages"] += 1


def incomplete(rows: Rows) -> None:
    """Take the time of arrival from a message of a batch."""
    first(rows, "closed")["messages"][0]["received_at"] = None


def reverse(rows: Rows) -> None:
    """Reverse the messages of a batch."""
    first(rows, "closed", many)["messages"].reverse()


def plus(column: str, by: Any) -> Callable[[Row], Any]:
    """Return a function that adds to a column."""
    return lambda row: row[column] + by


def refusing(**values: Any) -> Damage:
    """Return what takes a rejected message for one that the format refused, with some values otherwise."""
    nothing = dict.fromkeys(("source", "key", "type", "event_time", "sequence", "payload", "processing_time"))
    others = {"reason": "format_cast", "detail": "it is none", "missed_by_us": 0, "floor_raise_us": None}
    return setting("rejected", **(nothing | others | values))


READ = {"where": lambda row: row["messages_read"]}
TIMED = {"where": lambda row: row["close_reason"] == "timeout"}

DAMAGES: dict[str, Damage] = {
    "closed_batches_there": dropping("closed", most=1_000),
    "open_batches_there": dropping("open"),
    "batch_id": setting("open", window_start=plus("window_start", timedelta(microseconds=1))),
    "batch_filled": setting("closed", bytes=None),
    "batch_open_reason": setting("closed", open_reason="chance"),
    "batch_closed_filled": setting("closed", closed_at=None),
    "batch_life": setting("closed", opened_microbatch=99),
    "batch_window": setting("closed", window_end=plus("window_end", 20 * SECOND)),
    "batch_windows_apart": setting("closed", window_end=plus("window_end", 20 * SECOND)),
    "batch_parts": setting("closed", part=plus("part", 1)),
    "batch_timeout": setting("closed", timeout_at=plus("timeout_at", SECOND), closed_at=plus("closed_at", SECOND)),
    "batch_closed_at": setting("closed", **TIMED, closed_at=plus("closed_at", SECOND)),
    "batch_overdue": setting("open", window_end=plus("window_end", -20 * SECOND)),
    "batch_message_count": setting("closed", message_count=99),
    "batch_bytes": setting("closed", bytes=plus("bytes", 1)),
    "batch_first_event_time": setting("closed", first_event_time=plus("first_event_time", SECOND)),
    "batch_last_event_time": setting("closed", last_event_time=None),
    "batch_messages_inside": setting(
        "closed", lambda row: row["key"] == "m", window_end=lambda row: row["last_event_time"]
    ),
    "batch_messages_complete": incomplete,
    "batch_messages_sorted": reverse,
    "batch_size": setting("closed", oversize=True),
    "type_once_in_window": retype,
    "message_once": repeat,
    "rejected_messages_there": dropping("rejected"),
    "rejected_id": setting("rejected", key="nobody"),
    "rejected_reason": setting("rejected", because("too_old"), reason="late"),
    "rejected_microbatch": setting("rejected", microbatch=99),
    "rejected_detail": setting("rejected", because("invalid"), detail=None),
    "rejected_invalid": setting("rejected", because("too_old"), type=None),
    "rejected_processing_time": setting("rejected", because("too_old"), processing_time=None),
    "rejected_too_old": setting("rejected", because("too_old"), missed_by_us=1),
    "rejected_too_far_ahead": setting("rejected", because("too_far_ahead"), missed_by_us=0),
    "rejected_off_by": setting("rejected", because("clock_ahead"), missed_by_us=0),
    "rejected_duplicate": setting("rejected", because("too_far_ahead"), reason="duplicate", missed_by_us=0),
    "format_id": refusing(),
    "format_reason": refusing(reason="format_chance"),
    "format_detail": refusing(detail=None),
    "format_microbatch": refusing(microbatch=99),
    "format_no_message": refusing(key="k"),
    "id_once": copying("rejected"),
    "one_progress_row": copying("progress", control),
    "books_balance": lose,
    "accepted_in_batches": setting("microbatch", **READ, accepted=plus("accepted", 1), rejected=plus("rejected", -1)),
    "progress_microbatch": setting("progress", control, microbatch=plus("microbatch", 1)),
    "progress_last": setting("progress", control, depot_version=plus("depot_version", -1)),
    "microbatch_numbers": dropping("microbatch"),
    "microbatch_id": setting("microbatch", microbatch=99),
    "microbatch_kind": setting("microbatch", **READ, kind="tick"),
    "microbatch_sums": setting("microbatch", accepted=plus("accepted", 1)),
    "microbatch_closed": setting("microbatch", closed=plus("closed", 1)),
    "microbatch_rejected": setting("microbatch", rejected=plus("rejected", 1)),
    "depot_version_forward": setting("microbatch", lambda row: row["microbatch"] == 3, depot_version=0),
    "versions_sum": relist,
    "versions_in_order": reread,
    "version_once": reread,
    "source_open": setting("progress", lambda row: row["clock"], open_batches=plus("open_batches", 1)),
    "source_clock": setting("progress", lambda row: row["clock"], floor=lambda row: row["clock"] - SECOND),
}

"""What the pages of a stream, a batch and a message show, as tables whose cells link to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from windrow import reading
from windrow.errors import SettingsError
from windrow.model import timestamps
from windrow.model.printable import json_text, pluralize
from windrow.reading.status_text import short_time
from windrow.report.problems import name_text
from windrow.report.tables import Cell, Link, Table
from windrow.settings.settings import Settings

Values = Mapping[str, str]  # the non-empty parameters of an address
MAX_ROWS = 20  # for a stream
MAX_MESSAGES = 2_000  # for a batch; each adds about 300 bytes to the page


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its title and its tables."""

    title: str
    tables: list[Table]


def stream_page(settings: Settings, values: Values) -> Page:
    """Read the open batches, and the last closed batches and rejected messages, of a `source`, a `key`, or both."""
    ledger, idle = settings.ledger, settings.idle_timeout
    source, key = values.get("source"), values.get("key")
    opened = reading.batches(ledger, "open", key, source, MAX_ROWS, idle)
    closed = reading.batches(ledger, "closed", key, source, MAX_ROWS, idle)
    rejected = reading.rejections(ledger, key, source=source, limit=MAX_ROWS)
    named = {"source": source, "key": key}
    title = ", ".join(f"{name} {name_text(value)}" for name, value in named.items() if value is not None)
    return Page(
        title or "all streams",
        [
            _batch_table("open", "Open batches", opened, "No batch is open."),
            _batch_table("closed", "Last closed batches", closed, "No batch is closed."),
            _rejection_table(rejected),
        ],
    )


def batch_page(settings: Settings, values: Values) -> Page:
    """Read the batch with an `id` and its messages. Raises NotFoundError."""
    id_ = values.get("id", "")
    row = reading.batch(settings.ledger, id_, settings.idle_timeout)
    messages = row["messages"]
    left_out = len(messages) - MAX_MESSAGES
    notes = [f"The first {MAX_MESSAGES:,}; {left_out:,} more are left out."] if left_out > 0 else []
    identity = {"source": row["source"], "key": row["key"]}
    names = ("window_start", "window_end", "open_reason", "opened_microbatch", "closed_at", "close_reason")
    facts: list[tuple[Cell, ...]] = [
        ("stream", Link(f"{name_text(row['source'])}, {name_text(row['key'])}", page_address("stream", **identity))),
        ("state", row["state"]),
        *((name.replace("_", " "), str(row[name])) for name in names if row[name] is not None),
    ]
    if "closing" in row:
        facts.append(("waits", f"{row['closing']['reason']}; it closes {row['closing']['closes']}"))
    content = Table(
        "messages",
        f"{pluralize(row['message_count'], 'message')}, {row['bytes']:,} bytes",
        ("event time", "type", "received", "payload"),
        [_message_cells({**identity, **message}) for message in messages[:MAX_MESSAGES]],
        notes=notes,
        shown=100,
    )
    return Page(id_, [Table("batch", "Batch", ("", ""), facts, shown=len(facts)), content])


def message_page(settings: Settings, values: Values) -> Page:
    """Read what became of the messages of a key at an event time (ISO 8601). Raises NotFoundError, SettingsError."""
    if not values.keys() >= {"key", "event_time"}:
        hint = "Fill in both; a time looks like 2026-01-31T12:00:07.2Z."
        raise SettingsError("a message is identified by its key and event time", hint)
    key, at = values["key"], timestamps.microseconds(values["event_time"], "the event time")
    of = values.get("type"), values.get("source"), settings.depot_columns
    arrivals = reading.trace(settings.depot, settings.ledger, key, at, *of)
    title = pluralize(len(arrivals), "arrival")
    heads = ("outcome", "source", "type", "received", "depot version", "microbatch", "batch")
    return Page(
        f"{key} at {short_time(arrivals[0].event_time)}",
        [Table("fate", title, heads, [_arrival_cells(arrival) for arrival in arrivals], numbers=(4, 5), shown=100)],
    )


def page_address(page: str, **values: Any) -> str:
    """Return the address of a page; values that are None are left out."""
    return f"/{page}?{urlencode({name: value for name, value in values.items() if value is not None})}"


def _batch_address(row: Mapping[str, Any]) -> str:
    return page_address("batch", id=row["id"])


def _batch_table(name: str, title: str, rows: list[dict[str, Any]], empty: str) -> Table:
    """Return a table of batches; a line below an open one says when it closes."""
    cells = [
        (
            Link(f"{short_time(row['window_start'])} to {short_time(row['window_end'])[11:]}", _batch_address(row)),
            name_text(row["source"]),
            name_text(row["key"]),
            f"{row['message_count']:,}",
            row["open_reason"] if "closing" in row else row["close_reason"],
            *([f"it closes {row['closing']['closes']}"] if "closing" in row else []),
        )
        for row in rows
    ]
    heads = ("window", "source", "key", "messages", "opened by" if name == "open" else "closed by")
    return Table(name, title, heads, cells, numbers=(3,), shown=MAX_ROWS, empty=empty)


def _rejection_table(rows: list[dict[str, Any]]) -> Table:
    cells = [(*_message_cells(row), row["reason"], str(row["microbatch"])) for row in rows]
    heads = ("event time", "type", "received", "payload", "reason", "microbatch")
    empty = "No message was rejected."
    return Table("rejected", "Last rejected messages", heads, cells, numbers=(5,), shown=MAX_ROWS, empty=empty)


def _message_cells(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Return the cells of a message; its time links to what became of it, if it has a key and a time."""
    time = row["event_time"]
    shown: Cell = "" if time is None else short_time(time)
    if time is not None and row["key"] is not None:
        names = ("source", "key", "type", "event_time")
        shown = Link(str(time), page_address("message", **{name: row[name] for name in names}))
    payload = row["payload"]
    text = payload if payload is None or isinstance(payload, str) else json_text(payload, "utf-8")
    return shown, name_text(row["type"]), short_time(row["received_at"] or ""), name_text(text) if text else ""


def _arrival_cells(arrival: reading.Arrival) -> tuple[Cell, ...]:
    """Return the cells of an arrival, with a line below them that says why."""
    batch = "" if arrival.batch is None else Link(arrival.batch["id"], _batch_address(arrival.batch))
    reason = f"{arrival.rejection['reason']}: " if arrival.rejection else ""
    why = f"{reason}{arrival.why}" + (f"; {arrival.hint}" if arrival.hint else "")
    cells: tuple[Cell, ...] = (
        arrival.outcome,
        name_text(arrival.source),
        name_text(arrival.type),
        short_time(arrival.received_at or ""),
        "" if arrival.depot_version is None else str(arrival.depot_version),
        "" if arrival.microbatch is None else str(arrival.microbatch),
        batch,
    )
    return (*cells, why) if why else cells

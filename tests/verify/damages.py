"""Ways to damage a ledger so that it agrees with itself and with the depot, only not with the rules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from tests.clocks import NOW
from tests.messages import Row
from tests.verify.quality.damages import Damage, Rows, because, control, first, setting
from windrow.model.timestamps import EPOCH

TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
WINDOW = timedelta(seconds=10)
INSIDE = ("type", "event_time", "received_at", "sequence", "payload")


def mend(batch: Row) -> None:
    """Make id, count, bytes and times of a batch those of its window and messages."""
    inside = sorted(batch["messages"], key=lambda message: (message["event_time"], message["type"]))
    start = (batch["window_start"] - EPOCH) // TICK
    names = (name.replace("%", "%25").replace("/", "%2F") for name in (batch["source"], batch["key"]))
    batch |= {
        "id": "/".join(["batch", *names, str(start), str(batch["part"])]),
        "messages": inside,
        "message_count": len(inside),
        "bytes": sum(len(message["type"]) + len(message["payload"] or "") for message in inside),
        "first_event_time": inside[0]["event_time"],
        "last_event_time": inside[-1]["event_time"],
    }


def end(batch: Row, at: datetime) -> None:
    """Let the window of a batch that timed out end at another time."""
    delay = batch["timeout_at"] - batch["window_end"]
    batch |= {"window_end": at, "timeout_at": at + delay, "closed_at": at + delay}


def neighbours(rows: Rows) -> Iterator[tuple[Row, Row]]:
    """Yield batches that timed out and follow each other in their stream, each whole."""
    timed = [row for row in rows if row["close_reason"] == "timeout"]
    order = sorted(timed, key=lambda row: (row["source"], row["key"], row["window_start"], row["part"]))
    for left, right in pairwise(order):
        if (left["source"], left["key"]) == (right["source"], right["key"]) and left["part"] == right["part"] == 0:
            yield left, right


def misname(stream: tuple[str, str]) -> Damage:
    """Return what says of a batch of a stream that a conflict opened it, which a message did."""
    return setting(
        "closed",
        lambda row: (row["source"], row["key"]) == stream and row["open_reason"] == "message",
        open_reason="conflict",
    )


def move_message(rows: Rows) -> None:
    """Move the last message of a batch to the next one, and the border between them."""
    for left, right in neighbours(rows):
        last = left["messages"][-1]
        end_time = min(right["window_end"], last["event_time"] + WINDOW)
        alone = left["first_event_time"] < last["event_time"] != left["messages"][-2]["event_time"]
        if alone and right["last_event_time"] < end_time and last["type"] not in [m["type"] for m in right["messages"]]:
            right["messages"].append(left["messages"].pop())
            end(left, last["event_time"])
            right["window_start"] = last["event_time"]
            end(right, end_time)
            mend(left)
            mend(right)
            return
    raise LookupError("no such neighbours")


def shift_window(rows: Rows) -> None:
    """Let a window begin and end a microsecond earlier."""
    for left, right in neighbours(rows):
        if left["window_end"] < right["window_start"] and right["last_event_time"] < end_of(right):
            right["window_start"] -= TICK
            end(right, right["window_end"] - TICK)
            mend(right)
            return
    raise LookupError("no such window")


def shorten_window(rows: Rows) -> None:
    """Let a window end a microsecond earlier."""
    batch = first(rows, "closed", lambda row: row["close_reason"] == "timeout" and row["last_event_time"] < end_of(row))
    end(batch, batch["window_end"] - TICK)


def end_of(batch: Row) -> datetime:
    """Return the last time in the window of a batch."""
    last: datetime = batch["window_end"] - TICK
    return last


def version_of(message: Row) -> str:
    """Return the depot version of a message: it holds four seconds of the log."""
    return str(1 + (message["received_at"] - EPOCH - NOW * TICK) // (4 * SECOND))


def count(rows: Rows, microbatch: int, accepted: int) -> None:
    """Let a microbatch have accepted more messages, and rejected fewer."""
    history = first(rows, "microbatch", lambda row: row["microbatch"] == microbatch)
    history["accepted"] += accepted
    history["rejected"] -= accepted


def skip_version(rows: Rows) -> Rows:
    """Put a message that was too old into the batch of its time."""
    for refused in [row for row in rows if row["reason"] == "too_old"]:
        for batch in rows:
            if batch["state"] == "closed" and _fits(refused, batch):
                batch["messages"].append({name: refused[name] for name in INSIDE})
                mend(batch)
                count(rows, refused["microbatch"], 1)
                return [row for row in rows if row is not refused]
    raise LookupError("no such message")


def _fits(refused: Row, batch: Row) -> bool:
    return (
        (refused["source"], refused["key"]) == (batch["source"], batch["key"])
        and batch["window_start"] <= refused["event_time"] < batch["window_end"]
        and refused["type"] not in [message["type"] for message in batch["messages"]]
        and batch["bytes"] + 1 + len(refused["payload"] or "") <= 40
    )


def reject(rows: Rows) -> Rows:
    """Take the middle message out of a batch, as if it had been too old."""
    batch = first(rows, "closed", lambda row: row["message_count"] > 2 and row["opened_microbatch"] == 1)
    gone = batch["messages"].pop(1)
    mend(batch)
    count(rows, 1, -1)
    now = max(gone["received_at"], gone["event_time"] + 5 * SECOND + TICK)
    pattern = first(rows, "rejected", lambda row: row["reason"] == "too_old" and row["microbatch"] == 1)
    names = batch["id"].split("/")[1:3]
    refused = (
        pattern
        | {"source": batch["source"], "key": batch["key"], **gone}
        | {
            "id": "/".join(["rejected", version_of(gone), *names, "99"]),
            "processing_time": now,
            "missed_by_us": (now - 5 * SECOND - gone["event_time"]) // TICK,
            "floor_raise_us": (now - gone["received_at"]) // TICK,
        }
    )
    return [*rows, refused]


def swap_duplicate(rows: Rows) -> None:
    """Keep the second of two messages of one type and time, and reject the first as its duplicate."""
    refused = first(rows, "rejected", because("duplicate"))
    for batch in [row for row in rows if row["messages"]]:
        for inside in batch["messages"]:
            same = inside["event_time"] == refused["event_time"] and inside["type"] == refused["type"]
            if same and (batch["source"], batch["key"]) == (refused["source"], refused["key"]):
                for name in ("received_at", "sequence", "payload"):
                    inside[name], refused[name] = refused[name], inside[name]
                kind, _, *rest = refused["id"].split("/")
                refused["id"] = "/".join([kind, version_of(refused), *rest])
                refused["floor_raise_us"] = (refused["processing_time"] - refused["received_at"]) // TICK
                return
    raise LookupError("no such duplicate")


def misjudge(rows: Rows) -> None:
    """Say of a message that it was too old by a microsecond more, at a clock that stood so much later."""
    refused = first(rows, "rejected", because("too_old"))
    refused["processing_time"] += TICK
    refused["missed_by_us"] += 1
    refused["floor_raise_us"] += 1


def excuse(rows: Rows) -> None:
    """Say of a message that was too old that it was ahead of the clock."""
    refused = first(rows, "rejected", because("too_old"))
    refused |= {"reason": "clock_ahead", "missed_by_us": 1, "floor_raise_us": None, "processing_time": None}


def shift_floor(kind: str) -> Damage:
    """Return what lets a microbatch of a kind record a floor a microsecond later than it was, and all that follows."""

    def change(rows: Rows) -> None:
        history = max((row for row in rows if row["kind"] == kind), key=lambda row: row["microbatch"])
        moved = history["clocks"][0]
        for clock in ["clock", "floor"] if kind == "data" else ["floor"]:
            moved[clock] += TICK
        later = [row for row in rows if (row["microbatch"] or 0) > history["microbatch"] and row["clocks"]]
        if not any(clock_row["source"] == moved["source"] for row in later for clock_row in row["clocks"]):
            progress = first(rows, "progress", lambda row: row["source"] == moved["source"] and not control(row))
            progress |= {"clock": moved["clock"], "floor": moved["floor"]}

    return change


def shift_cut(rows: Rows) -> None:
    """Say that a flush cut a microsecond later than it did, in the history and in what follows from it."""
    flush = max((row for row in rows if row["kind"] == "flush"), key=lambda row: row["microbatch"])
    source = flush["clocks"][0]["source"]
    later = [row for row in rows if (row["microbatch"] or 0) >= flush["microbatch"] and row["clocks"]]
    clocks = [clock for row in later for clock in row["clocks"] if clock["source"] == source]
    for row in [*clocks, first(rows, "progress", lambda row: row["source"] == source and not control(row))]:
        row["cut"] += TICK


def close_later(rows: Rows) -> None:
    """Say of a batch that a later microbatch closed it."""
    batch = first(rows, "closed", lambda row: row["close_reason"] == "timeout" and row["closed_microbatch"] < 4)
    later = batch["closed_microbatch"] + 1
    for microbatch, more in ((batch["closed_microbatch"], -1), (later, 1)):
        first(rows, "microbatch", lambda row, at=microbatch: row["microbatch"] == at)["closed"] += more
    batch["closed_microbatch"] = later


def change_rules(rows: Rows) -> None:
    """Let a microbatch that read messages bring in other rules than those before it."""
    history = first(rows, "microbatch", lambda row: row["kind"] == "data" and row["microbatch"] == 2)
    history["rules"] = history["rules"].replace('"window": 10000000', '"window": 10000001')


def join_parts(rows: Rows) -> None:
    """Move a message of one part of a window to the part before it, within the maximum."""
    later = first(rows, "closed", lambda row: row["part"] == 1 and row["message_count"] == 1)
    earlier = first(rows, "closed", lambda row: row["part"] == 0 and row["window_start"] == later["window_start"])
    earlier["messages"][-1], later["messages"][0] = later["messages"][0], earlier["messages"][-1]
    mend(earlier)
    mend(later)


FLUSHED = lambda row: row["close_reason"] == "flush"  # noqa: E731 - a condition, as others are

DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "message moved": (move_message, {"windows by the rules", "messages by the rules"}),
    "window shifted": (shift_window, {"windows by the rules", "messages by the rules"}),
    "window shortened": (shorten_window, {"windows by the rules"}),
    "opened by": (
        setting("closed", lambda row: row["open_reason"] == "message", open_reason="conflict"),
        {"windows by the rules"},
    ),
    "opened in": (
        setting("closed", lambda row: row["opened_microbatch"] == 2, opened_microbatch=1),
        {"windows by the rules"},
    ),
    "closed in": (close_later, {"windows by the rules"}),
    "flushed at": (
        setting("closed", FLUSHED, closed_at=lambda row: row["closed_at"] + SECOND),
        {"windows by the rules"},
    ),
    "parts": (join_parts, {"messages by the rules"}),
    "accepted": (skip_version, {"decisions"}),
    "rejected": (reject, {"decisions"}),
    "off by": (misjudge, {"decisions"}),
    "reason": (excuse, {"decisions", "clock_ahead"}),
    "detail": (setting("rejected", because("invalid"), detail="payload is NULL"), {"decisions"}),
    "duplicate": (swap_duplicate, {"decisions"}),
    "ahead": (
        setting("rejected", because("clock_ahead"), missed_by_us=lambda row: row["missed_by_us"] + 1),
        {"decisions", "clock_ahead"},
    ),
    "floor": (shift_floor("data"), {"clocks by the log"}),
    "tick": (shift_floor("tick"), {"ticks"}),
    "flush": (shift_floor("flush"), {"clocks by the log"}),
    "cut": (shift_cut, {"clocks by the log"}),
    "rules": (change_rules, {"rules"}),
}

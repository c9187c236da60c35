"""Messages for tests, as Arrow tables; times in microseconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa

from tests.clocks import NOW

MILLISECOND = 1_000
SECOND = 1_000_000
HOUR = 3_600 * SECOND

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("key", pa.string()),
        ("type", pa.string()),
        ("event_time", TIME),
        ("received_at", TIME),
        ("sequence", pa.int64()),
        ("payload", pa.string()),
    ]
)

Row = dict[str, Any]
EPOCH = datetime.fromtimestamp(0, UTC)


def microseconds(moment: datetime) -> int:
    """Return a moment in microseconds since the epoch."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def message(
    type: str | None = "a",  # noqa: A002 - the column's name
    event_time: int | None = NOW,
    received_at: int | None = NOW,
    *,
    source: str | None = "",
    key: str | None = "k",
    sequence: int | None = None,
    payload: str | None = None,
) -> Row:
    """Return one message."""
    return {
        "source": source,
        "key": key,
        "type": type,
        "event_time": event_time,
        "received_at": received_at,
        "sequence": sequence,
        "payload": payload,
    }


def table(rows: Iterable[Row], payload: pa.DataType | None = None) -> pa.Table:
    """Return messages as a table, with string payloads unless told."""
    messages = list(rows)
    fields = [(field.name, payload if payload and field.name == "payload" else field.type) for field in SCHEMA]
    return pa.table({name: pa.array([row[name] for row in messages], kind) for name, kind in fields})


def log(versions: int, seed: int = 1, size: int = 30, start: int = NOW) -> list[list[Row]]:
    """Return a log of depot versions with everything that happens to messages, a few seconds a version.

    In every version most messages are in time; some are late, resent, too old, too far in the future, without a key
    or a type, or stamped an hour ahead (these have the key `ahead`). The last stamp is less than 4 s per version
    after `start`.
    """
    random = Random(seed)
    sent: list[Row] = []
    result = []
    for version in range(versions):
        rows = [_any_message(random, start + version * 4 * SECOND, sent) for _ in range(size)]
        sent += rows
        result.append(rows)
    return result


def _any_message(random: Random, start: int, sent: list[Row]) -> Row:
    stamp = start + random.randrange(4_000) * MILLISECOND
    kind = random.choices(["good", "late", "resent", "old", "future", "invalid", "ahead"], [70, 10, 8, 4, 4, 2, 2])[0]
    if kind == "resent" and sent:
        return {**random.choice(sent[-40:]), "received_at": stamp}
    delay = {
        "late": random.randint(3_000, 5_000),
        "old": random.randint(5_001, 9_000),
        "future": -random.randint(1_001, 3_000),
    }
    row = message(
        type=random.choice("abcdefgh"),
        event_time=stamp - delay.get(kind, random.randint(0, 200)) * MILLISECOND,
        received_at=stamp,
        source=random.choice(["", "s/1", "s%2"]),
        key=random.choice("klm"),
        sequence=random.choice([None, random.randrange(1_000)]),
        payload=f"#{len(sent)}.{random.randrange(1_000_000)}",
    )
    if kind == "invalid":
        row[random.choice(["key", "type", "event_time", "source"])] = None
    if kind == "ahead":
        row |= {"key": "ahead", "received_at": stamp + HOUR}
    return row

"""What follows from a log by the rules as `verify` knows them: clocks and verdicts in SQL, windows by its model.

That is the implementation of the rules beside the kernel, with which it shares no code. A step of a log is a
microbatch of a ledger of which only the log, the rules, the ticks and the flushes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from tests.batching.log import Flush, Log, Message, Tick
from tests.batching.strategies import Row, place, windrow_rules
from windrow.model.messages import INVALID_VALUE
from windrow.model.tables import CLOCKS, VERSIONS
from windrow.verify.decisions.relations import LEFT, StreamChoice, judge_part, relate_history
from windrow.verify.decisions.windows import derive as derive_windows
from windrow.verify.decisions.windows import read_history, source_histories
from windrow.verify.snapshot import LedgerContents

FIRST, RULES = -(1 << 62), "rules"
CONTENT = ("type", "event_time", "received_at", "sequence", "payload")
DECIDED = (
    "source", "key", "part", "window_start", "window_end", "timeout_at", "open_reason", "closed_at", "close_reason",
    "oversize",
)  # fmt: skip
TEXTS = dict.fromkeys(("source", "key", "type"), pa.string())
DEPOT = TEXTS | dict.fromkeys(("event_time", "received_at", "sequence", "version", "index", "byte_count"), pa.int64())
HISTORY = pa.schema(
    [
        ("microbatch", pa.int64()), ("kind", pa.string()), ("rules", pa.string()), ("revision", pa.int64()),
        ("versions", VERSIONS), ("clocks", CLOCKS),
    ]
)  # fmt: skip
CLOSED = pa.schema(
    [
        ("closed_microbatch", pa.int64()), ("source", pa.string()), ("close_reason", pa.string()),
        ("last_event_time", pa.int64()), ("timeout_at", pa.int64()),
    ]
)  # fmt: skip
EMPTY = {  # what a ledger would have beside the log, of which nothing is derived
    "batches": TEXTS | dict.fromkeys(("opened_microbatch", "message_rows"), pa.int64()),
    "rejected": TEXTS | {"microbatch": pa.int64()},
    "all_rejected": {"reason": pa.string()} | dict.fromkeys(("microbatch", "received_at", "missed_by_us"), pa.int64()),
    "held_open": TEXTS | dict.fromkeys(("event_time", "row", "previous_event_time"), pa.int64()),
    "batches_open": {"open_reason": pa.string()}
    | dict.fromkeys(("row", "window_start", "window_end", "opened_microbatch", "revision"), pa.int64()),
}
JUDGED = 'SELECT "index", reason, missed_by_us, now FROM judged'
DERIVED = """
SELECT s.source, s.key, d.* RENAME (start AS window_start, "end" AS window_end), p.inside
FROM derived AS d JOIN streams AS s ON s.stream = d.stream JOIN (
    SELECT p.batch, list(j."index") AS inside FROM placed AS p JOIN judged AS j ON j.row = p.row GROUP BY p.batch
) AS p ON p.batch = d.batch
"""
EVERY_STREAM = StreamChoice(gone=0, max_messages=1 << 40, left=LEFT.empty_table())


@dataclass(frozen=True)
class Derived:
    """What must come of a log: batches and rejections as rows of the package's tables, without what names them.

    `reasons` (None: accepted) and `processing_times` are by the index of a message, the `floors` after all by source.
    """

    open: list[Row]
    closed: list[Row]
    rejected: list[Row]
    reasons: dict[int, str | None]
    processing_times: dict[int, int]
    floors: dict[str, int]

    @property
    def batches(self) -> list[Row]:
        """All batches by stream, window and part."""
        return sorted([*self.open, *self.closed], key=place)


def derive(*logs: Log) -> Derived:
    """Derive what comes of logs, one after the other, each under its own rules."""
    microbatches = list(_microbatches(logs))
    cuts: list[Row] = []
    for number, (step, log) in enumerate(microbatches):
        if isinstance(step, Flush):
            before = [*microbatches[:number], *([] if step.now is None else [(Tick(step.now), log)])]
            cuts += _cuts(_derive(before, cuts).open, number + 1)
    return _derive(microbatches, cuts)


def _microbatches(logs: Iterable[Log]) -> Iterator[tuple[Any, Log]]:
    """Yield each step with its log, and `rules` between two logs whose rules differ."""
    last = None
    for log in logs:
        if last is not None and log.rules != last.rules:
            yield RULES, log
        yield from ((step, log) for step in log.steps)
        last = log


def _cuts(batches: list[Row], microbatch: int) -> list[Row]:
    """Return what a flush closes in each source, as far as its cut follows from that."""
    last = {batch["source"]: batch for batch in sorted(batches, key=lambda batch: batch["last_event_time"])}
    return [
        {
            "closed_microbatch": microbatch,
            "source": source,
            "last_event_time": batch["last_event_time"],
            "timeout_at": 0,
        }
        for source, batch in last.items()
    ]


def _derive(microbatches: list[tuple[Any, Log]], cuts: list[Row]) -> Derived:
    """Derive what comes of microbatches, given what those that flushed closed last."""
    if not microbatches:
        return Derived([], [], [], {}, {}, {})
    snapshot = LedgerContents(0, None, None, None, _history(microbatches, cuts))
    history = read_history(snapshot, readable=FIRST)
    messages = [message for step, _ in microbatches if isinstance(step, tuple) for message in step]
    with duckdb.connect(config={"threads": 1}) as connection:  # rows are few; statements are many
        _load(connection, messages, snapshot, cuts)

        def ask(query: str) -> pa.Table:
            return connection.sql(query).to_arrow_table()

        relate_history(connection, history, ask, ask)
        judge_part(connection, EVERY_STREAM)
        sources = source_histories(connection, history)
        derive_windows(connection, sources, lambda _: None)
        derived = connection.sql(DERIVED).to_arrow_table().to_pylist()
        verdicts = connection.sql(JUDGED).to_arrow_table().to_pylist()
    by_index = {message.index: message for message in messages}
    batches = sorted((_batch(row, by_index) for row in derived), key=place)
    return Derived(
        open=[row for row in batches if row["state"] == "open"],
        closed=[row for row in batches if row["state"] == "closed"],
        rejected=[_rejection(row, by_index[row["index"]]) for row in verdicts if row["reason"]],
        reasons={row["index"]: row["reason"] for row in verdicts},
        processing_times={row["index"]: row["now"] for row in verdicts},
        floors={source: history.floor for source, history in sources.items()},
    )


def _history(microbatches: list[tuple[Any, Log]], cuts: list[Row]) -> pa.Table:
    """Return the history that a ledger would have, of which only ticks and flushes record clocks."""
    rows, known = [], set[str]()
    for number, (step, log) in enumerate(microbatches, 1):
        kind, versions, clocks = "data", [], []
        if isinstance(step, Tick):
            kind, clocks = "tick", [{"source": source, "floor": step.now} for source in known]
        elif isinstance(step, Flush):
            closed = [row for row in cuts if row["closed_microbatch"] == number]
            kind, clocks = "flush", list(_flushed(step, log, known, closed))
        elif step == RULES:
            kind = step
        else:
            versions = [{"version": version} for version in sorted({message.version for message in step})]
            known |= {message.source for message in step}
        rows.append((number, kind, windrow_rules(log.rules).to_json(), number, versions, clocks))
    columns = [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), HISTORY.types, strict=True)]
    return pa.table(columns, HISTORY)


def _flushed(flush: Flush, log: Log, known: set[str], cuts: list[Row]) -> Iterator[Row]:
    """Yield the floors that a flush records: those that its time or its cut raised."""
    last = {row["source"]: row["last_event_time"] for row in cuts}
    for source in known:
        ends = [] if flush.now is None else [flush.now]
        ends += [last[source] + 1 + log.rules.max_delay] if source in last else []
        if ends:
            yield {"source": source, "floor": max(ends), "flushed_at": flush.now}


def _load(
    connection: duckdb.DuckDBPyConnection, messages: list[Message], snapshot: LedgerContents, cuts: list[Row]
) -> None:
    """Create the tables of a depot with messages, and those of a ledger without any rows but the flushed ones."""
    for name, columns in EMPTY.items():
        connection.register(name, pa.schema(columns.items()).empty_table())
    closed = [row | {"close_reason": "flush"} for row in cuts]
    connection.register("all_batches", pa.Table.from_pylist(closed, CLOSED))
    connection.register("history_rows", snapshot.history)
    binary = any(isinstance(message.payload, bytes) for message in messages)
    rows = [{name: getattr(message, name) for name in DEPOT} for message in messages]
    payloads = pa.array([message.payload for message in messages], pa.binary() if binary else pa.string())
    depot = pa.Table.from_pylist(rows, pa.schema(DEPOT.items())).append_column("payload", payloads)
    depot = depot.rename_columns({"byte_count": "content_bytes"})
    depot = depot.append_column(INVALID_VALUE, pa.nulls(depot.num_rows, pa.string()))
    for name in ("depot", "stream"):
        connection.register(name, depot)


def _batch(row: Row, by_index: dict[int, Message]) -> Row:
    """Return a derived batch as a row of the package's table."""
    inside = [by_index[index] for index in row["inside"]]
    inside.sort(key=lambda message: (message.event_time, message.type))
    return {name: row[name] for name in DECIDED} | {
        "state": "open" if row["closed_at"] is None else "closed",
        "bytes": sum(message.byte_count for message in inside),
        "message_count": len(inside),
        "first_event_time": inside[0].event_time,
        "last_event_time": inside[-1].event_time,
        "messages": [{name: getattr(message, name) for name in CONTENT} for message in inside],
    }


def _rejection(row: Row, message: Message) -> Row:
    """Return a derived rejection as a row of the package's table."""
    return {name: getattr(message, name) for name in ("source", "key", *CONTENT)} | {
        "reason": row["reason"],
        "missed_by_us": row["missed_by_us"],
        "processing_time": row["now"],
        "floor_raise_us": row["now"] - message.received_at,
    }

"""Trace a message: every arrival of one identity (source, key, type, event time), in order, and what became of it.

The depot says what arrived and in which version, as far back as its change feed goes; the ledger says what became of
it. Content identifies an arrival in both; if several in one version are identical, the rejected ones are counted, and
the remaining one was accepted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.delta.row_changes import has_feed
from windrow.delta.table import read_filtered
from windrow.errors import NotFoundError, UsageError
from windrow.model import tables
from windrow.model.commits import CHANGE, VERSION
from windrow.model.messages import DEFAULTS, convert_column, microseconds
from windrow.model.timestamps import time_text
from windrow.reading import feed
from windrow.reading.details import nearest_batch
from windrow.reading.reasons import TIMES, Explanation, explain
from windrow.reading.tables import (
    DepotTable,
    Ledger,
    Progress,
    equal,
    open_depot,
    open_ledger,
    quote_text,
    skipped_versions,
    time_literal,
)
from windrow.reading.values import records

Outcome = Literal["open", "closed", "rejected", "waiting", "skipped", "lost"]
Row = dict[str, Any]
MessageQuery = dict[str, str | None]

CONTENT = ("source", "type", "received_at", "sequence", "payload")
BATCH = ("id", "state", "window_start", "window_end", "closed_at", "close_reason", "closed_microbatch")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One arrival of a message and what became of it, with `why` and `hint` in words.

    `batch` has the id, window and state of the batch that contains it; `rejection` has the id, the reason and by how
    much it missed. `depot_version` and `microbatch` are None where they are not (or no longer) known.
    """

    outcome: Outcome
    source: str | None
    key: str
    type: str | None
    event_time: str
    received_at: str | None
    sequence: int | None
    payload: Any
    depot_version: int | None
    microbatch: int | None
    batch: Row | None
    rejection: Row | None
    why: str
    hint: str


def trace(
    depot: str,
    ledger: str,
    key: str,
    at: int,
    type_: str | None = None,
    source: str | None = None,
    columns: dict[str, str] | None = None,
) -> list[Arrival]:
    """Return what became of the messages of a key at an event time (microseconds), of one type or source if given.

    `columns` maps the columns of a depot with other names. Raises NotFoundError when there is no such message,
    TableMissingError, IncompatibleTableError, DepotMismatchError; ExpressionError if the ledger has none and the
    mapping needs Spark.
    """
    book = open_ledger(ledger)
    progress = book.progress()
    log = open_depot(depot, book, progress)
    query = {"key": key, "type": type_, "source": source}
    accepted, rejected = _find_accepted(book, query, at), _find_rejected(book, query, at)
    try:
        arrived = _arrivals(log, query, at, columns or {}, book.payload)
    except UsageError:  # the mapping needs Spark, but the ledger alone has an answer
        if not (accepted or rejected):
            raise
        arrived = []
    if not (accepted or rejected or arrived):
        near = nearest_batch(book, equal({name: query[name] for name in ("key", "source")}), at)
        raise _not_found_error(log, query, at, bool(columns), near)
    placed = list(_match_arrivals(arrived, accepted, rejected))
    history = _History(book, progress, placed)
    return [history.arrival(key, at, *arrival) for arrival in sorted(placed, key=_order)]


def _arrivals(
    log: DepotTable, query: MessageQuery, at: int, columns: dict[str, str], payload: pa.DataType
) -> list[Row]:
    """Return the content and `version` of each message with the key, type and source in `query` (None: any).

    Versions that can no longer be read are left out. Raises ExpressionError for a mapping (`columns`) that needs Spark.
    """
    try:
        _, rows = feed.read_from(log, 0, lambda first: _feed(log, first, query, at, columns, payload))
    except feed.UNREADABLE:
        return []
    if "payload" in rows.column_names:
        typed = convert_column(rows["payload"], payload)
        rows = rows.set_column(rows.column_names.index("payload"), "payload", typed)
    return [DEFAULTS | row for row in records(rows)]


def _not_found_error(log: DepotTable, query: MessageQuery, at: int, mapped: bool, batch: str) -> NotFoundError:
    """Return the error for a message that the depot lacks; it names the nearest times of its key, and a `batch`."""
    of = ", ".join(f"{name} {value!r}" for name, value in query.items() if value is not None)
    what = f"the depot has no message of {of} at {time_text(at)} in versions up to {log.version()}"
    if mapped or not isinstance(log, DeltaTable):
        return NotFoundError(what, batch)
    among = [(name, "=", value) for name, value in query.items() if value is not None and name in feed.names(log)]
    times = np.unique(microseconds(read_filtered(log, among, ["event_time"])["event_time"].drop_null()))
    near = [time_text(int(time)) for time in times[np.argsort(np.abs(times - at), kind="stable")][:3]]
    if not near:
        return NotFoundError(what, "It has none at any other time, either.")
    return NotFoundError(what, f"The nearest are at {', '.join(near)}. {batch}")


def _feed(
    log: DepotTable, first: int, query: MessageQuery, at: int, columns: dict[str, str], payload: pa.DataType
) -> pa.Table:
    from windrow.expressions import ColumnMapping

    if isinstance(log, DeltaTable) and has_feed(log) and ColumnMapping.of_depot(columns, feed.names(log)) is None:
        with suppress(*feed.UNREADABLE):  # the files may be readable further back than the feed
            return _plain(log, first, query, at)
    return _filter_rows(feed.messages(log, first, columns, payload), query, at)


def _plain(log: DeltaTable, first: int, query: MessageQuery, at: int) -> pa.Table:
    """Find messages by a predicate on the feed, which opens only files that may contain them."""
    names = [name for name in CONTENT if name in feed.names(log)]
    if "source" not in names:
        if query["source"]:
            return _no_arrivals()
        query = query | {"source": None}
    where = f"{equal(query)} AND CAST(event_time AS BIGINT) = {at:d} AND {CHANGE} = 'insert'"
    columns = [*names, "key", "event_time", CHANGE, VERSION]
    stream = log.load_cdf(starting_version=first, columns=columns, predicate=where, allow_out_of_range=True)
    rows = pa.RecordBatchReader.from_stream(stream).read_all()
    return rows.select([*names, VERSION]).rename_columns([*names, "version"])


def _filter_rows(pieces: Iterable[pa.Table], query: MessageQuery, at: int) -> pa.Table:
    """Filter all rows, piece by piece: a mapped column has no file statistics."""
    parts = []
    for messages in pieces:
        mask = pc.equal(messages["event_time"].cast(pa.int64()), at)
        for name, value in query.items():
            mask = mask if value is None else pc.and_(mask, pc.equal(messages[name], value))
        parts.append(messages.filter(mask).select([*CONTENT, "version"]))
    return pa.concat_tables(parts) if parts else _no_arrivals()


def _no_arrivals() -> pa.Table:
    return pa.schema([*((name, pa.string()) for name in CONTENT), ("version", pa.int64())]).empty_table()


def _find_accepted(book: Ledger, query: MessageQuery, at: int) -> list[Row]:
    stream = equal({name: query[name] for name in ("key", "source")})
    window = f"window_start <= {time_literal(at)} AND window_end > {time_literal(at)}"
    columns = f"source, {', '.join(BATCH)}, unnest(messages) AS message"
    same = f"message['event_time'] = {time_literal(at)}"
    if query["type"] is not None:
        same += f" AND message['type'] = {quote_text(query['type'])}"
    rows = records(book.rows(("open", "closed"), columns, f"{stream} AND {window}", then=same))
    return [row.pop("message") | {"source": row.pop("source"), "batch": row} for row in rows]


def _find_rejected(book: Ledger, query: MessageQuery, at: int) -> list[Row]:
    columns = ", ".join([*tables.REJECTED, *(f"epoch_us({name}) AS {name}_us" for name in TIMES)])
    return records(book.rows("rejected", columns, f"{equal(query)} AND event_time = {time_literal(at)}"))


Placed = tuple[Row, int | None, Row | None, Row | None]
"""The message, its depot version, its row in a batch, its rejection."""


def _match_arrivals(arrived: list[Row], accepted: list[Row], rejected: list[Row]) -> Iterable[Placed]:
    """Match arrivals with what became of them; messages that the depot no longer has come without an arrival."""
    in_depot = Counter((row["version"], _content(row)) for row in arrived)
    refused: dict[tuple[int, tuple[Any, ...]], list[Row]] = {}
    for row in rejected:
        refused.setdefault((int(row["id"].split("/")[1]), _content(row)), []).append(row)
    batches_of = {_content(row): row for row in accepted}
    for row in arrived:
        place = (row["version"], _content(row))
        left = refused.get(place, [])
        if place[1] in batches_of and in_depot[place] > len(left):
            yield row, row["version"], batches_of.pop(place[1]), None
        else:
            yield row, row["version"], None, left.pop(0) if left else None
        in_depot[place] -= 1
    for row in batches_of.values():
        yield row, None, row, None
    for (version, _), rows in refused.items():
        for row in rows:
            yield row, version, None, row


def _content(row: Row) -> tuple[Any, ...]:
    """Return what tells arrivals apart; -0.0 is not 0.0."""
    return (*(row[name] for name in CONTENT if name != "payload"), json.dumps(row["payload"]))


def _order(placed: Placed) -> tuple[Any, ...]:
    """Order arrivals as the rules process them; among identical ones, the accepted one came first."""
    row, version, _, rejection = placed
    sequence = row["sequence"]
    known = (-1 if version is None else version, row["received_at"] or "")
    return *known, sequence is not None, sequence or 0, rejection is not None


class _History:
    """What the history recorded about the depot versions and microbatches of some arrivals."""

    def __init__(self, book: Ledger, progress: Progress, placed: list[Placed]) -> None:
        self._book, self._progress = book, progress
        versions = sorted({version for _, version, _, _ in placed if version is not None})
        numbers = sorted({rejection["microbatch"] for *_, rejection in placed if rejection})
        self._read = self._microbatches(book, versions) if versions else {}
        rules = book.rows("microbatch", "microbatch, rules", f"microbatch IN ({_list(numbers)})") if numbers else None
        self._rules = {row["microbatch"]: row["rules"] for row in rules.to_pylist()} if rules else {}
        self._holder = {_content(row)[:2]: holder["batch"]["id"] for row, _, holder, _ in placed if holder}
        ids = ", ".join(quote_text(rejection["id"]) for *_, rejection in placed if rejection)
        amended = book.rows("superseded", "superseded_id, superseded_by", f"superseded_id IN ({ids})") if ids else None
        self._let_in = dict(zip(*amended.to_pydict().values(), strict=True)) if amended else {}

    def arrival(
        self, key: str, at: int, row: Row, version: int | None, holder: Row | None, refused: Row | None
    ) -> Arrival:
        microbatch = refused["microbatch"] if refused else None if version is None else self._read.get(version)
        outcome, why = self._outcome(version, microbatch, holder, refused)
        rejection = {name: refused[name] for name in ("id", "reason", "detail", "missed_by_us")} if refused else None
        return Arrival(
            outcome=outcome,
            key=key,
            event_time=time_text(at),
            **{name: row[name] for name in CONTENT},
            depot_version=version,
            microbatch=microbatch,
            batch=holder["batch"] if holder else None,
            rejection=rejection,
            why=why.reason,
            hint=why.hint,
        )

    def _outcome(
        self, version: int | None, microbatch: int | None, holder: Row | None, refused: Row | None
    ) -> tuple[Outcome, Explanation]:
        if refused:
            return "rejected", self._reason(refused)
        if holder:
            state = holder["batch"]["state"]
            return state, Explanation(f"it is in {'an' if state == 'open' else 'a'} {state} batch", "")
        if version is not None and version > self._progress.depot_version:
            resume = "`windrow resume`, then " if self._progress.paused else ""
            reached = self._progress.depot_version
            return "waiting", Explanation(
                f"it waits in depot version {version}; "
                f"the ledger has read {f'up to {reached}' if reached >= 0 else 'nothing yet'}",
                f"{resume}`windrow run` reads it",
            )
        if microbatch is None and version in skipped_versions(self._book):
            return "skipped", Explanation(
                f"depot version {version} deleted or rewrote rows, and a run skipped it with --skip-version {version}",
                "append it to the depot again",
            )
        if microbatch is None:
            return "skipped", Explanation(
                f"depot version {version} was never read: the ledger began later ({self._progress.start_from})",
                'a new ledger with start_from = "beginning" reads it',
            )
        return "lost", Explanation(
            f"microbatch {microbatch} read depot version {version}, and the ledger has lost it",
            "`windrow verify` says what else is wrong; please report it",
        )

    def _reason(self, refused: Row) -> Explanation:
        rules = json.loads(self._rules.get(refused["microbatch"]) or self._progress.rules)
        why = explain(refused, rules["max_delay"], rules["max_lead"], self._holder.get(_content(refused)[:2]))
        let_in = self._let_in.get(refused["id"])
        return why if let_in is None else Explanation(f"{why.reason}; an amendment let it into {let_in}", "")

    @staticmethod
    def _microbatches(book: Ledger, versions: list[int]) -> dict[int, int]:
        reached = f"kind = 'data' AND depot_version >= {versions[0]:d}"
        among = f"read['version'] IN ({_list(versions)})"
        rows = book.rows("microbatch", "microbatch, unnest(versions) AS read", reached, then=among)
        return {row["read"]["version"]: row["microbatch"] for row in rows.to_pylist()}


def _list(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers)

"""Trace a message: every arrival of one identity (source, key, type, event time), in order, and what became of it.

The depot says what arrived and in which version, the ledger what became of it. Content identifies an arrival in both;
if several in one version are identical, the rejected ones are counted and the remaining one was accepted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from windrow.errors import UsageError
from windrow.model import tables
from windrow.model.timestamps import time_text
from windrow.reading.arrivals import CONTENT, arrivals, not_found_error
from windrow.reading.details import nearest_batch
from windrow.reading.reasons import TIMES, Explanation, explain
from windrow.reading.tables import (
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

BATCH = ("id", "state", "window_start", "window_end", "closed_at", "close_reason", "closed_microbatch")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One arrival of a message and what became of it, with `why` and `hint` in words.

    `batch` has the id, window and state of the batch that holds it; `rejection` has id, reason and by how much it
    missed. `depot_version` and `microbatch` are None where they are not (or no longer) known.
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
    TableMissingError, IncompatibleTableError, DepotMismatchError; ExpressionError when the ledger has none and the
    mapping needs Spark.
    """
    book = open_ledger(ledger)
    progress = book.progress()
    log = open_depot(depot, book, progress)
    query = {"key": key, "type": type_, "source": source}
    accepted, rejected = _accepted(book, query, at), _rejected(book, query, at)
    try:
        arrived = arrivals(log, query, at, columns or {}, book.payload)
    except UsageError:  # the mapping needs Spark, but the ledger alone has an answer
        if not (accepted or rejected):
            raise
        arrived = []
    if not (accepted or rejected or arrived):
        near = nearest_batch(book, equal({name: query[name] for name in ("key", "source")}), at)
        raise not_found_error(log, query, at, bool(columns), near)
    placed = list(_placed(arrived, accepted, rejected))
    history = _History(book, progress, placed)
    return [history.arrival(key, at, *arrival) for arrival in sorted(placed, key=_order)]


def _accepted(book: Ledger, query: dict[str, str | None], at: int) -> list[Row]:
    stream = equal({name: query[name] for name in ("key", "source")})
    window = f"window_start <= {time_literal(at)} AND window_end > {time_literal(at)}"
    columns = f"source, {', '.join(BATCH)}, unnest(messages) AS message"
    same = f"message['event_time'] = {time_literal(at)}"
    if query["type"] is not None:
        same += f" AND message['type'] = {quote_text(query['type'])}"
    rows = records(book.rows(("open", "closed"), columns, f"{stream} AND {window}", then=same))
    return [row.pop("message") | {"source": row.pop("source"), "batch": row} for row in rows]


def _rejected(book: Ledger, query: dict[str, str | None], at: int) -> list[Row]:
    count = ", ".join(f"epoch_us({name}) AS {name}_us" for name in TIMES)
    return records(
        book.rows(
            "rejected", f"{', '.join(tables.REJECTED)}, {count}", f"{equal(query)} AND event_time = {time_literal(at)}"
        )
    )


Placed = tuple[Row, int | None, Row | None, Row | None]
"""The message, its depot version, its row in a batch, its rejection."""


def _placed(arrived: list[Row], accepted: list[Row], rejected: list[Row]) -> Iterable[Placed]:
    """Match arrivals with what became of them; what the depot no longer has comes without an arrival."""
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
    """Order arrivals as the rules process them; of identical ones the accepted one came first."""
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

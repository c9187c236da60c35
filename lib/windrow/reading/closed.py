"""Closed batches for programs without Spark: those that came after a position, each exactly once.

A position is the number of a microbatch, not a version of the table: every final row says in which microbatch it was
written, and neither OPTIMIZE nor VACUUM nor a clean-up of the log changes that. A RESTORE uses numbers again, though.
So the position that is handed out carries a mark of its microbatch as well, as in `41@0f3c9a6e21b4`: another microbatch
41, or another ledger at the same place, has another mark.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import LedgerRestored, SettingsError
from windrow.model import tables
from windrow.reading.delta import Ledger, open_ledger

Final = Literal["closed", "rejected"]

# The column that says in which microbatch a final row was written.
WRITTEN_IN: dict[Final, str] = {"closed": "closed_in", "rejected": "microbatch"}
POSITION = re.compile(r"(?P<number>\d+)(?:@(?P<mark>[0-9a-f]+))?")
MARK_LETTERS = 12
AFRESH = "What was handed out since is no longer what the ledger says. Read it afresh: without `since`."


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed batches, with the columns of the view `closed_batches`, and the `since` of the next call."""

    batches: pa.Table
    upto: str


@dataclass(frozen=True, slots=True)
class Span:
    """The `rows` of a final state that the microbatches after `begin`, up to `end`, say they wrote."""

    state: Final
    begin: int
    end: int
    rows: int
    upto: str

    @property
    def where(self) -> str:
        """Return the condition that these rows meet, as SQL."""
        column = WRITTEN_IN[self.state]
        return f"{column} > {self.begin} AND {column} <= {self.end}"

    def require_whole(self, found: int) -> None:
        """Raise LedgerRestored unless as many rows were found as the history says."""
        if found != self.rows:
            raise LedgerRestored(
                f"microbatches {self.begin + 1} to {self.end} wrote {self.rows} {self.state} rows, {found} are there",
                "Rows of the ledger were deleted or added by hand; RESTORE it to the version before that.",
            )


def read_closed(ledger: str, since: str | int | None = None, batches_at_once: int | None = None) -> Closed:
    """Return the batches that closed after `since`, each exactly once, in the order in which they closed.

    `since` is the `upto` of the call before, None for the beginning, or the bare number of a microbatch, of which
    nobody can prove that it is still the same. With `batches_at_once` no more microbatches are read than close that
    many batches, but at least one that closed any: the result is empty only when nothing is left. Raises
    LedgerRestored when the ledger no longer holds what was read up to `since`; TableMissing, TableRefused.
    """
    book = open_ledger(ledger)
    part = span(book, "closed", since, batches_at_once)
    schema = pa.schema(tables.batch_fields(book.payload))
    found = book.rows("closed", ", ".join(schema.names), part.where, "ORDER BY closed_in, id").cast(schema)
    part.require_whole(found.num_rows)
    return Closed(found, part.upto)


def span(book: Ledger, state: Final, since: str | int | None, rows_at_once: int | None = None) -> Span:
    """Return what the microbatches after `since` wrote, as their history has it. Raises LedgerRestored."""
    reached = book.progress().microbatch
    begin = _proven(book, since, reached)
    history = book.rows("microbatch", f"microbatch, {state} AS written", f"microbatch > {begin}", "ORDER BY 1")
    written = pc.cumulative_sum(history["written"]).to_numpy()
    taken = written.size if rows_at_once is None else _taken(written, rows_at_once)
    end = reached if taken == written.size else history["microbatch"][taken - 1].as_py()
    return Span(state, begin, end, int(written[taken - 1]) if taken else 0, f"{end}@{_mark(book, end)}")


def _taken(written: np.ndarray[tuple[int], np.dtype[np.int64]], rows_at_once: int) -> int:
    """Return how many microbatches write no more rows than that; one more where these wrote none."""
    if rows_at_once < 1:
        raise SettingsError(f"{rows_at_once} batches at once are none", "Give a number above 0, or leave it out.")
    fitting = int(np.searchsorted(written, rows_at_once, "right"))
    nothing = fitting == 0 or written[fitting - 1] == 0
    return min(fitting + nothing, written.size)


def _proven(book: Ledger, since: str | int | None, reached: int) -> int:
    """Return the number of the microbatch up to which was read, after proof that the ledger still has it."""
    if since is None:
        return 0
    parts = POSITION.fullmatch(str(since))
    if not parts:
        raise SettingsError(f"since = {since!r} is no position", "Give the `upto` of the last call, or a number.")
    number = int(parts["number"])
    if number > reached:
        raise LedgerRestored(f"was read up to microbatch {number}, the ledger has only reached {reached}", AFRESH)
    if parts["mark"] not in {None, _mark(book, number)}:
        raise LedgerRestored(f"microbatch {number} of the ledger is not the one that was read up to", AFRESH)
    return number


def _mark(book: Ledger, number: int) -> str:
    """Return what tells a microbatch from another of its number: a digest of its ledger and its commit's token.

    Before the first microbatch it is the ledger alone. Where a history has no tokens, the time of the start stands in.
    """
    token = "coalesce(token, CAST(CAST(started_at AS BIGINT) AS VARCHAR)) AS token"
    tokens = book.rows("microbatch", token, f"microbatch = {number}")["token"].to_pylist()
    return hashlib.sha256("/".join([str(book.table.metadata().id), *tokens]).encode()).hexdigest()[:MARK_LETTERS]

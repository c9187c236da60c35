"""Read closed batches without Spark: those that closed after a position, each exactly once.

A position is the number of a microbatch, not a version of the table: every final row says which microbatch wrote it,
and neither OPTIMIZE nor VACUUM nor a cleanup of the log changes that. After a RESTORE, however, numbers are used again.
So a position also has a fingerprint of its microbatch, as in `41@0f3c9a6e21b4`: another microbatch 41, or another
ledger at the same place, has another one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
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
AFRESH = "Batches that you have read are no longer in the ledger. Discard them and read again without `since`."


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed batches, with the columns of the view `closed_batches`, and the `since` of the next call."""

    batches: pa.Table
    upto: str


@dataclass(frozen=True, slots=True)
class Span:
    """Some microbatches, after `begin` and up to `end`, and how many `rows` of a final state they wrote."""

    state: Final
    begin: int
    end: int
    rows: int
    upto: str

    @property
    def where(self) -> str:
        """Return the SQL condition that selects these rows."""
        column = WRITTEN_IN[self.state]
        return f"{column} > {self.begin} AND {column} <= {self.end}"

    def require_whole(self, found: int) -> None:
        """Raise LedgerRestored unless as many rows were found as the history says."""
        if found != self.rows:
            raise LedgerRestored(
                f"microbatches {self.begin + 1} to {self.end} wrote {self.rows} {self.state} rows, {found} are there",
                "Somebody deleted or added rows by hand. RESTORE the ledger to the version before that.",
            )


def read_closed(
    ledger: str,
    since: str | int | None = None,
    batches_at_once: int | None = None,
    pivot: bool = False,
    types: Sequence[str] | None = None,
) -> Closed:
    """Return the batches that closed after `since`, each exactly once, in the order in which they closed.

    `since` is the `upto` of the previous call, None for the beginning, or the bare number of a microbatch, which cannot
    be checked for a RESTORE. `batches_at_once` limits how many batches are read, in whole microbatches; at least one
    microbatch that closed any is read, so the result is empty only when nothing is left. With `pivot` a batch is a row
    of numbers with a column for each of the `types`, by default all those in these batches (see `reading.pivot`).
    Raises LedgerRestored when the ledger no longer holds what was read up to `since`; SettingsError, TableMissing,
    TableRefused; OutputRefused for the pivot of payloads that are no numbers.
    """
    book = open_ledger(ledger)
    wanted = span(book, "closed", since, batches_at_once)
    schema = pa.schema(tables.batch_fields(book.payload))
    found = book.rows("closed", ", ".join(schema.names), wanted.where, "ORDER BY closed_in, id").cast(schema)
    wanted.require_whole(found.num_rows)
    if pivot:
        from windrow.reading.pivot import Pivot

        found = Pivot.of(book, wanted.where, types).rows(found)
    return Closed(found, wanted.upto)


def span(book: Ledger, state: Final, since: str | int | None, rows_at_once: int | None = None) -> Span:
    """Return which microbatches follow `since`, and how many rows they recorded. Raises LedgerRestored."""
    reached = book.progress().microbatch
    begin = _checked_position(book, since, reached)
    history = book.rows("microbatch", f"microbatch, {state} AS written", f"microbatch > {begin}", "ORDER BY 1")
    written = pc.cumulative_sum(history["written"]).to_numpy()
    taken = written.size if rows_at_once is None else _taken(written, rows_at_once)
    end = reached if taken == written.size else history["microbatch"][taken - 1].as_py()
    return Span(state, begin, end, int(written[taken - 1]) if taken else 0, f"{end}@{_mark(book, end)}")


def _taken(written: np.ndarray[tuple[int], np.dtype[np.int64]], rows_at_once: int) -> int:
    """Return how many microbatches wrote at most that many rows together; one more if these wrote none."""
    if rows_at_once < 1:
        raise SettingsError(f"batches_at_once is {rows_at_once}", "Give a number above 0, or leave it out.")
    fitting = int(np.searchsorted(written, rows_at_once, "right"))
    nothing = fitting == 0 or written[fitting - 1] == 0
    return min(fitting + nothing, written.size)


def _checked_position(book: Ledger, since: str | int | None, reached: int) -> int:
    """Return the number of the microbatch in `since`, 0 for None. Raises LedgerRestored if it is not the same now."""
    if since is None:
        return 0
    parts = POSITION.fullmatch(str(since))
    if not parts:
        raise SettingsError(f"since = {since!r} is not a position", "Give the `upto` of the last call, or a number.")
    number = int(parts["number"])
    if number > reached:
        raise LedgerRestored(f"you have read up to microbatch {number}, but the ledger ends at {reached}", AFRESH)
    if parts["mark"] not in {None, _mark(book, number)}:
        raise LedgerRestored(f"microbatch {number} of the ledger is not the one that you have read", AFRESH)
    return number


def _mark(book: Ledger, number: int) -> str:
    """Return a fingerprint of a microbatch: a digest of the ledger's id and the token of the commit.

    For 0, before the first microbatch, it is that of the ledger's id alone. A row without a token has its start time.
    """
    token = "coalesce(token, CAST(CAST(started_at AS BIGINT) AS VARCHAR)) AS token"
    tokens = book.rows("microbatch", token, f"microbatch = {number}")["token"].to_pylist()
    return hashlib.sha256("/".join([str(book.table.metadata().id), *tokens]).encode()).hexdigest()[:MARK_LETTERS]

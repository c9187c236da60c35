"""Closed batches, each exactly once: those that closed after a position, without Spark, or as a Spark stream.

A position is the number of a microbatch, not a version of the table: every final row says which microbatch wrote it,
and neither OPTIMIZE nor VACUUM nor a cleanup of the log changes that. After a RESTORE, however, numbers are reused, so
a position also has a fingerprint of its microbatch, as in `41@0f3c9a6e21b4`: a different microbatch 41, or a different
ledger at the same path, has a different fingerprint. `41@0f3c9a6e21b4/500` is a position inside a microbatch: after the
first 500 batches that microbatch 41 closed, in the order of their ids.

In a stream of the ledger a closed batch arrives once, as an insert, because commits only add rows, and folds and
compactions change no data. A plain stream with `skipChangeCommits` would miss a RESTORE, though. In the change feed,
any change to a closed row other than its insert takes back a delivered batch, and stops the stream.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from windrow.delta.locations import is_catalog_name
from windrow.errors import IncompatibleTableError, LedgerRestoredError, SettingsError, TableMissingError
from windrow.model import tables
from windrow.model.commits import CHANGE
from windrow.reading.tables import Ledger, open_ledger, quote_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Final = Literal["closed", "rejected"]

# The column with the microbatch that wrote a final row.
WRITTEN_IN: dict[Final, str] = {"closed": "closed_microbatch", "rejected": "microbatch"}
POSITION = re.compile(r"(?P<number>\d{1,18})(?:@(?P<mark>[0-9a-f]+)(?:/(?P<rows>[1-9]\d{0,17}))?)?")
MARK_LETTERS = 12
BY_HAND = "Somebody deleted or added rows by hand. RESTORE the ledger to the version before that."
AFRESH = "Batches that you have read are no longer in the ledger. Discard them and read again without `since`."
TAKEN_BACK = (
    f"{LedgerRestoredError.code}: closed batches were taken back: the ledger was restored, or closed rows were deleted "
    "or changed by hand. Start the stream again with a new checkpoint and an empty target."
)
EVERY_FILE = 2_147_483_647  # a limit could split a RESTORE and deliver restored rows before removed ones
NO_TABLE = ("DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_SCHEMA_NOT_SET", "TABLE_OR_VIEW_NOT_FOUND")


@dataclass(frozen=True, slots=True)
class ClosedBatches:
    """Closed batches, with the columns of the view `closed_batches`, and the `since` of the next call."""

    batches: pa.Table
    position: str


@dataclass(frozen=True, slots=True)
class RowRange:
    """The `rows` of a final state that the microbatches after `start` and up to `end` wrote, in the order of ids.

    With `after`, the range begins just after the row of microbatch `start` with that id; with `until`, it ends with the
    row of microbatch `end` with that id.
    """

    state: Final
    start: int
    end: int
    rows: int
    position: str
    after: str | None
    until: str | None

    @property
    def where(self) -> str:
        """Return the SQL condition that selects these rows."""
        column = WRITTEN_IN[self.state]
        first, last = f"{column} > {self.start}", f"{column} <= {self.end}"
        if self.after is not None:
            first = f"({first} OR ({column} = {self.start} AND id > {quote_text(self.after)}))"
        if self.until is not None:
            last = f"({column} < {self.end} OR ({column} = {self.end} AND id <= {quote_text(self.until)}))"
        return f"{first} AND {last}"

    def require_whole(self, count: int) -> None:
        """Raise LedgerRestoredError unless the number of rows found is what the history says."""
        if count != self.rows:
            raise LedgerRestoredError(
                f"microbatches {self.start + (self.after is None)} to {self.end} wrote {self.rows} {self.state} rows, "
                f"but {count} are there",
                BY_HAND,
            )


def read_closed(
    ledger: str,
    since: str | int | None = None,
    batches_at_once: int | None = None,
    pivot: bool = False,
    types: Sequence[str] | None = None,
) -> ClosedBatches:
    """Return the batches that closed after `since`, each exactly once, in the order in which they closed.

    Args:
        ledger: The path of the ledger.
        since: The `position` of the previous call, None for the beginning, or the bare number of a microbatch, which
            cannot be checked for a RESTORE.
        batches_at_once: The most batches to read; the result is empty only when nothing is left.
        pivot: Whether to return each batch as a row of numbers with a column for each type (see `reading.pivot`).
        types: The types that get a column; by default all types in these batches.

    Returns:
        The batches, and the `since` of the next call.

    Raises:
        LedgerRestoredError: The ledger no longer holds what was read up to `since`.
        SettingsError: `since` is not a position.
        TableMissingError: There is no such ledger.
        IncompatibleTableError: The table is not a ledger.
        OutputFileError: With `pivot`: payloads are not numbers.

    Example:
        >>> closed = windrow.read_closed("data/ledger")
        >>> closed.batches["key"].to_pylist()
        ['pump-1']
        >>> windrow.read_closed("data/ledger", closed.position).batches.num_rows
        0
    """
    if types is not None and not pivot:
        raise SettingsError(f"types = {types!r} chooses columns of a pivot", "Set pivot=True, or leave types out.")
    book = open_ledger(ledger)
    written_by = span(book, "closed", since, batches_at_once)
    schema = pa.schema(tables.batch_fields(book.payload))
    rows = book.rows("closed", ", ".join(schema.names), written_by.where, "ORDER BY closed_microbatch, id").cast(schema)
    written_by.require_whole(rows.num_rows)
    if pivot:
        from windrow.reading.pivot import Pivot

        rows = Pivot.of(book, written_by.where, types).rows(rows)
    return ClosedBatches(rows, written_by.position)


def span(book: Ledger, state: Final, since: str | int | None, rows_at_once: int | None = None) -> RowRange:
    """Return the final rows after `since`, at most `rows_at_once`. Raises LedgerRestoredError, SettingsError."""
    if rows_at_once is not None and not (isinstance(rows_at_once, int) and rows_at_once > 0):
        raise SettingsError(f"batches_at_once is {rows_at_once!r}", "Give a whole number above 0, or leave it out.")
    reached = book.progress().microbatch
    start, read = _parse_position(book, since, reached)
    if read and state != "closed":
        raise SettingsError(
            f"since = {since!r} is between two closed batches",
            "Only closed batches can begin there: give a position without a slash.",
        )
    after = _id_of(book, state, start, read) if read else None
    first = start if read else start + 1
    history = book.rows("microbatch", f"microbatch, {state} AS written", f"microbatch >= {first}", "ORDER BY 1")
    total = np.cumsum(history["written"].to_numpy()) - read
    rows, end, until, within = int(total[-1]) if total.size else 0, reached, None, ""
    if rows_at_once is not None and rows > rows_at_once:
        place = int(np.searchsorted(total, rows_at_once))
        rows, end = rows_at_once, history["microbatch"][place].as_py()
        if left := int(total[place]) - rows_at_once:
            count = history["written"][place].as_py() - left
            until, within = _id_of(book, state, end, count), f"/{count}"
    return RowRange(state, start, end, rows, f"{end}@{_mark(book, end)}{within}", after, until)


def _id_of(book: Ledger, state: Final, number: int, count: int) -> str:
    """Return the id of the last of the first `count` rows that a microbatch wrote. Raises LedgerRestoredError."""
    rows = book.rows(state, "id", f"{WRITTEN_IN[state]} = {number}", f"ORDER BY id LIMIT 1 OFFSET {count - 1}")
    if not rows.num_rows:
        written = f"microbatch {number} wrote {count} {state} rows or more"
        raise LedgerRestoredError(f"{written}, but fewer are there", BY_HAND)
    return str(rows["id"][0].as_py())


def _parse_position(book: Ledger, since: str | int | None, reached: int) -> tuple[int, int]:
    """Return the microbatch in `since` (0 for None), and how many of its rows were read (0: all).

    Raises LedgerRestoredError if the ledger no longer has that microbatch.
    """
    if since is None:
        return 0, 0
    parts = POSITION.fullmatch(str(since))
    if not parts:
        raise SettingsError(
            f"since = {since!r} is not a position", "Give the `position` of the last call, or a number."
        )
    number = int(parts["number"])
    if number > reached:
        raise LedgerRestoredError(f"you have read up to microbatch {number}, but the ledger ends at {reached}", AFRESH)
    if parts["mark"] not in {None, _mark(book, number)}:
        raise LedgerRestoredError(f"microbatch {number} of the ledger is not the one that you have read", AFRESH)
    return number, int(parts["rows"] or 0)


def _mark(book: Ledger, number: int) -> str:
    """Return a fingerprint of a microbatch: a digest of the ledger's id and the token of the commit.

    For 0, before the first microbatch, only the ledger's id counts. A row without a token has its start time instead.
    """
    token = "coalesce(token, CAST(epoch_us(started_at) AS VARCHAR)) AS token"
    tokens = book.rows("microbatch", token, f"microbatch = {number}")["token"].to_pylist()
    return hashlib.sha256("/".join([str(book.table.metadata().id), *tokens]).encode()).hexdigest()[:MARK_LETTERS]


def stream_closed(spark: SparkSession, ledger: str, since: int | None = None) -> DataFrame:
    """Return a streaming frame of closed batches, with the columns of the view `closed_batches`, each exactly once.

    When first started, the stream delivers all closed batches; from then on, it delivers each batch as it closes. Spark
    keeps the position in the query's checkpoint. A RESTORE that takes closed batches back stops the stream with
    WINDROW-LEDGER-RESTORED.

    Args:
        spark: The session.
        ledger: A path, or a name in a catalog if it looks like `a.b` or `a.b.c` (write `./a.b` for such a path).
        since: The number of a microbatch; the stream begins with the batches that closed after it.

    Returns:
        The frame.

    Raises:
        TableMissingError: There is no such ledger.
        IncompatibleTableError: The table is not a ledger.

    Example:
        >>> closed = windrow.stream_closed(spark, "data/ledger")  # doctest: +SKIP
        >>> closed.writeStream.option("checkpointLocation", "data/checkpoint").toTable("closed")  # doctest: +SKIP
    """
    from pyspark.sql import functions as F

    changes = _changes(spark, ledger)
    is_closed = F.col("state") == "closed"
    arrives = F.col(CHANGE).isin("insert", "update_postimage")
    taken_back = F.raise_error(F.lit(TAKEN_BACK)).cast("boolean")
    # The state is in both conditions: the first prunes files, the second must not raise for an open row.
    kept = F.when(~is_closed, F.lit(False)).when(arrives, F.lit(True)).otherwise(taken_back)
    closed = changes.where(is_closed).where(kept).select(*tables.BATCH_COLUMNS)
    return closed if since is None else closed.where(F.col("closed_microbatch") > since)


def _changes(spark: SparkSession, ledger: str) -> DataFrame:
    """Return the ledger's change feed as a stream: the rows present at the first start, then every change."""
    from pyspark.errors import AnalysisException

    reader = spark.readStream.format("delta").option("readChangeFeed", "true").option("maxFilesPerTrigger", EVERY_FILE)
    try:
        changes = reader.table(ledger) if is_catalog_name(ledger) else reader.load(ledger)
        names = set(changes.columns)
    except AnalysisException as error:
        if error.getCondition() not in NO_TABLE:
            raise
        raise TableMissingError(
            f"there is no ledger at {ledger}", "Give its path, or its name in a catalog."
        ) from error
    if not names.issuperset(tables.BATCH_COLUMNS):
        raise IncompatibleTableError(f"{ledger} is a Delta table, but not a ledger", "Give the path of a ledger.")
    return changes

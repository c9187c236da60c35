"""Compute digests of a ledger in canonical form: of each batch, rejection and microbatch, and of the whole.

Two ledgers with the same digest decided alike on the same messages, whichever engine wrote them and in however many
microbatches. The digest of a microbatch covers the batches that it closed and the messages that it rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import one_batch, to_plain_types
from windrow.model import canonical
from windrow.reading.tables import Ledger, open_ledger, quote_text

ROW = pa.schema(
    [
        ("id", pa.string()), ("state", pa.string()), ("microbatch", pa.int64()),
        ("digest", pa.string()), ("content", pa.string()),
    ]
)  # fmt: skip
MICROBATCH = pa.schema([("microbatch", pa.int64()), ("rows", pa.int64()), ("digest", pa.string())])
BATCHES = ("open", "closed")
# The columns that digests are made of.
BATCH_SQL = ", ".join([*canonical.BATCH, "closed_microbatch AS microbatch", "messages"])
REJECTED_SQL = ", ".join([*canonical.REJECTED, "microbatch"])


Streams = Mapping[str, tuple[str, ...]]
"""The columns that restrict the streams, `key` and `source`, with their values; empty: all streams."""


@dataclass(frozen=True, slots=True)
class LedgerSelection:
    """Selects rows of a ledger: those of these streams that are open, or were finished after microbatch `after`."""

    after: int = 0
    streams: Streams = field(default_factory=dict)

    def condition(self, number: str) -> str:
        """Return the SQL condition; `number` is the column with the microbatch that finished a row."""
        return f"({number} IS NULL OR {number} > {self.after:d}) AND {self.of_streams}"

    @property
    def of_streams(self) -> str:
        """Return the SQL condition for the streams."""
        chosen = (f"{name} IN ({', '.join(map(quote_text, values))})" for name, values in self.streams.items())
        return " AND ".join(["true", *chosen])

    def batches(self, ledger: Ledger) -> Iterator[pa.Table]:
        """Yield the batches with their messages and the `microbatch` that closed them; see `Ledger.pieces`."""
        return ledger.pieces(BATCHES, BATCH_SQL, self.condition("closed_microbatch"))

    def rejections(self, ledger: Ledger) -> Iterator[pa.Table]:
        """Yield the rejections with their `microbatch`."""
        return ledger.pieces("rejected", REJECTED_SQL, self.condition("microbatch"))


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of a ledger.

    `rows` has `id, state, microbatch, digest, content`, ordered by id: `microbatch` finished the row (NULL for an open
    batch), `digest` covers the row, and `content` only the messages of a batch (NULL for a rejection).
    """

    rows: pa.Table
    total: str

    @classmethod
    def of(cls, rows: pa.Table) -> Digests:
        """Return the digests of some rows."""
        ordered = rows.sort_by("id").combine_chunks()
        return cls(ordered, canonical.digest(ordered.to_batches()))

    @classmethod
    def under(cls, ids: pa.Array, rows: pa.Table) -> Digests:
        """Return the digests of rows with any columns, such as those of a state, as `id, digest`."""
        encoded = canonical.fields([ids, *(column.combine_chunks() for column in rows.columns)])
        return cls.of(pa.table({"id": ids, "digest": canonical.digests(encoded)}))

    def differing(self, others: Digests) -> pa.Table:
        """Return the rows that the others lack or have with another digest."""
        at = pc.index_in(self.rows["id"], others.rows["id"].combine_chunks())
        same = pc.equal(others.rows["digest"].take(at), self.rows["digest"])
        return self.rows.filter(pc.invert(pc.fill_null(same, False)))

    def microbatches(self) -> pa.Table:
        """Return `microbatch, rows, digest` of each microbatch that finished any row, in order."""
        order = [(name, "ascending") for name in ("microbatch", "id")]
        finished = self.rows.filter(pc.is_valid(self.rows["microbatch"])).sort_by(order).combine_chunks()
        runs = pc.run_end_encode(finished["microbatch"].combine_chunks())
        ends = runs.run_ends.to_pylist()
        parts = [finished.slice(start, end - start) for start, end in zip([0, *ends], ends, strict=False)]
        digests_of_parts = [canonical.digest(part.to_batches()) for part in parts]
        return pa.table([runs.values, [part.num_rows for part in parts], digests_of_parts], schema=MICROBATCH)


def digests(ledger: str | Ledger, part: LedgerSelection | None = None, version: int | None = None) -> Digests:
    """Return the digests of a ledger.

    Args:
        ledger: Its path, or an open ledger.
        part: The rows that count; None for all.
        version: A version of the table; None for the latest.

    Returns:
        The digests; two ledgers with the same `total` have the same content.

    Raises:
        TableMissingError: There is no such ledger.
        IncompatibleTableError: The table is not a ledger.
        TableUnreadableError: A file cannot be read.
        NotFoundError: The version does not exist.

    Example:
        >>> windrow.digests("data/ledger").total == windrow.digests("data/ledger").total
        True
    """
    opened = ledger if isinstance(ledger, Ledger) else open_ledger(ledger, version)
    selection = part or LedgerSelection()
    pieces = [*map(batch_digests, selection.batches(opened)), *map(rejection_digests, selection.rejections(opened))]
    return Digests.of(pa.concat_tables(pieces))


def batch_digests(batches: pa.Table) -> pa.Table:
    """Return the digests of batches (`LedgerSelection.batches`) in the columns of `ROW`."""
    rows = one_batch(to_plain_types(batches))
    inside = canonical.contents(rows["messages"])
    return _digest_rows(rows, canonical.batches(rows, inside), canonical.digests(inside))


def rejection_digests(rejections: pa.Table) -> pa.Table:
    """Return the digests of rejections (`LedgerSelection.rejections`) in the columns of `ROW`."""
    rows = one_batch(to_plain_types(rejections))
    return _digest_rows(rows, canonical.rejections(rows), pa.nulls(rows.num_rows, pa.string()))


def _digest_rows(rows: pa.RecordBatch, encoded: pa.Array, content: pa.Array) -> pa.Table:
    columns = [rows["id"], rows["state"], rows["microbatch"], canonical.digests(encoded), content]
    return pa.table(columns, schema=ROW)

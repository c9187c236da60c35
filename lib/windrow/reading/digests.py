"""Compute digests of a ledger in canonical form: of each batch and rejection, of each microbatch, and of all.

Two ledgers with the same digest decided alike on the same messages, whatever engine wrote them and in however many
microbatches. The digest of a microbatch covers the batches that it closed and the messages that it rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from windrow.model import canonical
from windrow.reading.tables import Ledger, open_ledger, quoted

ROW = pa.schema(
    [
        ("id", pa.string()), ("state", pa.string()), ("microbatch", pa.int64()),
        ("digest", pa.string()), ("content", pa.string()),
    ]
)  # fmt: skip
MICROBATCH = pa.schema([("microbatch", pa.int64()), ("rows", pa.int64()), ("digest", pa.string())])
BATCHES = ("open", "closed")


Streams = Mapping[str, tuple[str, ...]]
"""The columns that restrict the streams, `key` and `source`, with their values; empty: all streams."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which rows of a ledger: of these streams, those that are open or finished after microbatch `after`."""

    after: int = 0
    streams: Streams = field(default_factory=dict)

    def condition(self, number: str) -> str:
        """Return the SQL condition; `number` is the column with the microbatch that finished a row."""
        wanted = [f"({number} IS NULL OR {number} > {self.after:d})"]
        for name, values in self.streams.items():
            wanted.append(f"{name} IN ({', '.join(quoted(value) for value in values)})")
        return " AND ".join(wanted)


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of a ledger.

    `rows` has `id, state, microbatch, digest, content`, ordered by id: `microbatch` finished the row (NULL while it is
    open), `digest` covers the row, and `content` only the messages of a batch (NULL for a rejection).
    """

    rows: pa.Table
    total: str

    @classmethod
    def of(cls, rows: pa.Table) -> Digests:
        """Return the digests of some rows."""
        ordered = rows.sort_by("id").combine_chunks()
        return cls(ordered, _digest(ordered))

    @classmethod
    def under(cls, ids: pa.Array, rows: pa.Table) -> Digests:
        """Return the digests of rows with any columns, such as those of a state, as `id, digest`."""
        fields = [canonical.netstrings(column.combine_chunks()) for column in (pa.chunked_array([ids]), *rows.columns)]
        return cls.of(pa.table({"id": ids, "digest": canonical.digests(canonical.joined(fields))}))

    def differing(self, others: Digests) -> pa.Table:
        """Return the rows that the others do not have with the same digest."""
        at = pc.index_in(self.rows["id"], others.rows["id"].combine_chunks())
        same = pc.equal(others.rows["digest"].take(at), self.rows["digest"])
        return self.rows.filter(pc.invert(pc.fill_null(same, False)))

    def microbatches(self) -> pa.Table:
        """Return `microbatch, rows, digest` of each microbatch that finished something, in their order."""
        finished = self.rows.filter(pc.is_valid(self.rows["microbatch"])).sort_by("microbatch").combine_chunks()
        runs = pc.run_end_encode(finished["microbatch"].combine_chunks())
        ends = runs.run_ends.to_pylist()
        parts = [finished.slice(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]
        columns = [runs.values, [part.num_rows for part in parts], [_digest(part) for part in parts]]
        return pa.table(columns, schema=MICROBATCH)


def digests(ledger: str | Ledger, part: Part | None = None, version: int | None = None) -> Digests:
    """Return the digests of a ledger (default: of all its rows, at its latest version).

    Raises TableMissing, TableRefused, TableUnreadable, or NotFound for a version that does not exist.
    """
    opened = ledger if isinstance(ledger, Ledger) else open_ledger(ledger, version)
    return Digests.of(pa.concat_tables([ROW.empty_table(), *_pieces(opened, part or Part())]))


def _pieces(ledger: Ledger, part: Part) -> Iterator[pa.Table]:
    """Yield the digests of rows piece by piece, so that a large ledger need not fit in memory."""
    columns = ", ".join([*canonical.BATCH, "closed_in AS microbatch", "messages"])
    for piece in ledger.pieces(BATCHES, columns, part.condition("closed_in")):
        content = canonical.digests(canonical.contents(piece["messages"]))
        yield _rows(piece, canonical.batches(piece), content)
    columns = ", ".join([*canonical.REJECTED, "microbatch"])
    for piece in ledger.pieces("rejected", columns, part.condition("microbatch")):
        yield _rows(piece, canonical.rejections(piece), pa.nulls(piece.num_rows, pa.string()))


def _rows(rows: pa.RecordBatch, encoded: pa.Array, content: pa.Array) -> pa.Table:
    columns = [rows["id"], rows["state"], rows["microbatch"], canonical.digests(encoded), content]
    return pa.table(columns, schema=ROW)


def _digest(rows: pa.Table) -> str:
    return canonical.digest(rows["id"].combine_chunks(), rows["digest"].combine_chunks())

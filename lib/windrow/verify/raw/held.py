"""Read what only the ledger of a raw depot has: rejections of the format, partial rows, and counts of bytes."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.model.chunks import REFUSED
from windrow.model.tables import RAW_REJECTED
from windrow.reading.tables import Ledger

PARTIAL = ("id", "raw_source", "chunk", "last", "content", "digests")
BYTES = ("bytes_read", "bytes_framed", "bytes_rejected", "bytes_repeated")


@dataclass(frozen=True, slots=True)
class RawRows:
    """The rejections of the format, the partial rows, and counts of bytes: as a ledger has them, or formatted again.

    `byte_count` has the columns `BYTES` of each microbatch; formatted again, `version, bytes` of each version with
    chunks, NULL where a codec decodes them. Rejections that were formatted again have the `version` that decided them.
    """

    rejected: pa.Table
    partial: pa.Table
    byte_count: pa.Table


def read_raw(ledger: Ledger, rejected: pa.Table) -> RawRows:
    """Return what a ledger over a raw depot has besides messages; `rejected` has all of its rejections."""
    counts = ", ".join(f"COALESCE({name}, 0) AS {name}" for name in BYTES)
    return RawRows(
        rejected=rejected.filter(of_format(rejected)),
        partial=plain(ledger.rows("partial", ", ".join(PARTIAL))),
        byte_count=plain(ledger.rows("microbatch", f"microbatch, {counts}", rest="ORDER BY microbatch")),
    )


def of_messages(rejected: pa.Table) -> pa.Table:
    """Return the rejections of messages, without the columns that only rejections of the format have."""
    mine = rejected.filter(pc.invert(of_format(rejected)))
    return mine.drop_columns(RAW_REJECTED)


def of_format(rejected: pa.Table) -> pa.ChunkedArray:
    """Tell which rejections are of the format, not of a message."""
    return pc.fill_null(pc.starts_with(rejected["reason"], REFUSED), False)


def bytes_of(table: pa.Table) -> int:
    """Return how many bytes of `content` the rows of a table hold."""
    return int(pc.sum(pc.binary_length(table["content"])).as_py() or 0)

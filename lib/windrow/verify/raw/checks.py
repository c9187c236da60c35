"""Check a ledger over a raw depot: where its bytes went, what the format refused, and what is unfinished."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import identifier, multiset_difference, numbers, select_rows
from windrow.verify.depot import DepotMessages
from windrow.verify.report import Difference, difference_in_numbers, difference_in_rows
from windrow.verify.snapshot import BYTES, LedgerContents, RawRows, bytes_of

PLACE = ["id", "reason", "raw_source", "chunk", "offset", "received_at"]


def check_raw(snapshot: LedgerContents, depot: DepotMessages) -> Iterator[Difference]:
    """Check what only the ledger of a raw depot has and, if the depot can be read, compare it with the depot."""
    raw = snapshot.raw
    if raw is None:
        return
    yield from _balance(raw)
    yield from _payloads(raw)
    yield from _ids(raw)
    if depot.formatted is None:
        return
    yield from _bytes(snapshot, raw, depot.formatted)
    yield from _check_rejections(snapshot, raw, depot.formatted)
    if depot.several is not None:
        yield from difference_in_rows(
            "records of several lines", "one record by the grammar", depot.several, "hold several"
        )
    if snapshot.progress.depot_version == depot.last:
        yield from _check_partial_rows(raw, depot.formatted)


def _balance(raw: RawRows) -> Iterator[Difference]:
    """Check bytes read = in records + rejected + repeated + unfinished, and that rejections have the rejected bytes."""
    read, framed, rejected, repeated = (int(pc.sum(raw.byte_count[name]).as_py() or 0) for name in BYTES)
    total = framed + rejected + repeated + bytes_of(raw.partial)
    yield from difference_in_numbers("bytes", read, total, "bytes in records, rejected, repeated and unfinished")
    yield from difference_in_numbers("rejected bytes", rejected, bytes_of(raw.rejected), "bytes in rejections")


def _payloads(raw: RawRows) -> Iterator[Difference]:
    """Check that no rejection of the format has a payload; the invariants check its other columns, without payloads."""
    rows = select_rows(raw.rejected, raw.rejected["payload"].is_valid().to_numpy(), PLACE)
    yield from difference_in_rows("payloads of the format", "no payload", rows, "rejections")


def _ids(raw: RawRows) -> Iterator[Difference]:
    """Check ids: a record's id is its place; a chunk's has its version and its number among equal chunks."""
    rows = raw.rejected
    record = identifier("record", *(rows[name] for name in ("raw_source", "chunk", "offset")))
    parts = pc.extract_regex(rows["id"], r"(?s)^chunk/(?P<version>\d{1,18})/.*/(?P<ordinal>\d{1,18})/[^/]*$")
    named, ordinal = (pc.struct_field(parts, name) for name in ("version", "ordinal"))
    chunk = identifier("chunk", named, rows["raw_source"], rows["chunk"], ordinal, rows["reason"])
    yield from _as_named(rows, pc.if_else(pc.is_valid(rows["offset"]), record, chunk))
    partial = raw.partial
    source = identifier("raw", partial["raw_source"])
    ids = identifier("raw", partial["raw_source"], partial["chunk"])
    is_source = pc.is_valid(partial["digests"])
    yield from _as_named(partial, pc.if_else(is_source, source, ids))


def _as_named(rows: pa.Table, expected: pa.ChunkedArray) -> Iterator[Difference]:
    wrong = pc.invert(pc.fill_null(pc.equal(rows["id"], expected), False))
    examples = rows.select(["id"]).append_column("by its columns", expected).filter(wrong)
    yield from difference_in_rows("ids", "the id that the columns make", examples, "rows with another id")


def _bytes(snapshot: LedgerContents, raw: RawRows, formatted: RawRows) -> Iterator[Difference]:
    """Check that each microbatch read as many bytes as its versions have in the depot, unless a codec decodes them."""
    read = snapshot.versions_read.select(["version", "microbatch"]).join(formatted.byte_count, "version")
    there = read.group_by("microbatch", use_threads=False).aggregate(
        [("bytes", "sum"), ("bytes", "count"), ([], "count_all")]
    )
    there = there.filter(pc.equal(there["bytes_count"], there["count_all"]))
    both = there.join(raw.byte_count, "microbatch", join_type="inner").sort_by("microbatch")
    wrong = numbers(both["bytes_sum"]) != numbers(both["bytes_read"])
    rows = select_rows(both, wrong, ["microbatch", "bytes_sum", "bytes_read"])
    rows = rows.rename_columns(["microbatch", "in the depot", "in the history"])
    expected = "as many bytes as the depot has in the versions read"
    yield from difference_in_rows("bytes read", expected, rows, "microbatches")


def _check_rejections(snapshot: LedgerContents, raw: RawRows, formatted: RawRows) -> Iterator[Difference]:
    """Check that exactly what the format refuses is rejected, complete and by the microbatch that read it."""
    there = formatted.rejected
    there = there.filter(pc.less_equal(there["version"], snapshot.progress.depot_version))
    there = there.join(snapshot.versions_read.select(["version", "microbatch"]), "version")
    names = [*PLACE, "content", "microbatch"]
    there, rejected = there.select(names), raw.rejected.select(names)
    expected = "what the format refuses of the depot, each once"
    missing, other = map(_as_examples, multiset_difference(there, rejected))
    yield from difference_in_rows("refused by the format", expected, missing, "missing or different in the ledger")
    yield from difference_in_rows("refused by the format", expected, other, "in the ledger, not in the depot")


def _check_partial_rows(raw: RawRows, formatted: RawRows) -> Iterator[Difference]:
    """Check that the partial rows have the bytes that are unfinished in the depot."""
    expected = "what is unfinished in each raw source"
    missing, other = map(_as_examples, multiset_difference(formatted.partial, raw.partial))
    yield from difference_in_rows("unfinished", expected, missing, "partial rows missing or different in the ledger")
    yield from difference_in_rows("unfinished", expected, other, "partial rows that the depot does not give")


def _as_examples(rows: pa.Table) -> pa.Table:
    """Return rows as examples, with the number of bytes instead of the bytes, which may be many."""
    names = [name for name in (*PLACE, "last", "detail", "microbatch") if name in rows.column_names]
    return rows.select(names).append_column("bytes", pc.binary_length(rows["content"]))

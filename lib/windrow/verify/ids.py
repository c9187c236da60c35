"""Check ids: each is unique in the whole ledger and made from the columns of its row."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import differ, kept, repeated
from windrow.verify.report import Difference, differing
from windrow.verify.snapshot import Snapshot


def check_ids(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that ids are unique and made from the columns of their rows."""
    parts = [snapshot.batches, snapshot.rejections, snapshot.history, snapshot.sources]
    parts += [snapshot.raw.partial] if snapshot.raw else []
    ids = pa.concat_tables([part.select(["id"]) for part in parts])
    yield from differing("unique ids", "every id once", repeated(ids, ["id"]), "ids that occur again")
    batches = snapshot.batches
    numbers = [batches["window_start"].cast(pa.int64()), batches["part"]]
    expected = identifier("batch", batches["source"], batches["key"], *numbers)
    yield from as_expected(batches, expected)
    yield from as_expected(snapshot.history, identifier("microbatch", snapshot.history["microbatch"]))
    yield from as_expected(snapshot.sources, identifier("source", snapshot.sources["source"]))
    rejected = snapshot.rejected
    named = named_by_id(rejected)
    expected = identifier("rejected", named["version"], rejected["source"], rejected["key"], named["ordinal"])
    yield from as_expected(rejected, expected)


def named_by_id(rejected: pa.Table) -> pa.Table:
    """Return `version` and `ordinal` as text: the parts of a rejection's id that are not columns."""
    parts = pc.extract_regex(rejected["id"], r"(?s)^rejected/(?P<version>\d{1,18})/.*/(?P<ordinal>\d+)$")
    return pa.table({name: pc.struct_field(parts, name) for name in ("version", "ordinal")})


def as_expected(rows: pa.Table, expected: pa.ChunkedArray) -> Iterator[Difference]:
    """Compare the ids of rows with the expected ones."""
    wrong = differ(rows["id"], expected)
    examples = kept(rows.select(["id"]).append_column("by its columns", expected), wrong)
    yield from differing("ids", "the id that the columns make", examples, "rows with another id")


def identifier(kind: str, *components: pa.ChunkedArray) -> pa.ChunkedArray:
    """Join components as ids do: `%`, `/` and NUL are encoded, NULL is `%N`."""
    return pc.binary_join_element_wise(pa.scalar(kind), *(_encoded(component) for component in components), "/")


def _encoded(component: pa.ChunkedArray) -> pa.ChunkedArray:
    text = component.cast(pa.string())
    for special, code in (("%", "%25"), ("/", "%2F"), ("\0", "%00")):
        text = pc.replace_substring(text, special, code)
    return pc.fill_null(text, "%N")

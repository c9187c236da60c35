r"""Check a format: every cut of its bytes, every order of arrival, repetitions, microbatches, and malformed bytes.

A reader of yours, written for clarity rather than speed, is a second opinion on every input with one byte missing,
doubled or swapped.

```python
def test_logfmt():
    check_format({"type": "logfmt", "fields": {"level": "string"}}, good=[b"level=info\n"], bad=[b'level="\n'])
```
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME
from windrow.formats.format import Format, format_of
from windrow.formats.raw.source import SCHEMA
from windrow.formats.raw.spans import with_places
from windrow.formats.raw.stage import ByteCounts, StageResult, stage
from windrow.formats.raw.two_passes import ParsePlan, can_spread, parse_bodies, summarise_chunks
from windrow.formats.settings import FormatSettings
from windrow.model import tables
from windrow.model.chunks import RAW
from windrow.model.commits import VERSION

REPEATED = "format_repeated"
WAYS = 3  # random cuts of each stream
DAMAGES = 12  # random changes of the good stream
Naive = Callable[[bytes], tuple[list[dict[str, Any]], list[bytes]]]


def check_format(
    settings: FormatSettings | Mapping[str, Any],
    good: Sequence[bytes],
    bad: Sequence[bytes] = (),
    malformed: Sequence[bytes] = (),
    start: bytes = b"",
    seed: int = 0,
    naive: Naive | None = None,
) -> list[dict[str, Any]]:
    """Check a format, and return the rows of the good records. Raises AssertionError, which shows the bytes.

    Each item of `good` is the bytes of one good record, which may become several rows. Each item of `bad` is rejected
    and does not affect other records. `malformed`, and random damage to all of these, are checked only for what holds
    for any bytes: each byte is in a record, rejected or kept, and the result does not depend on cuts, order of arrival
    and microbatches. A source begins with `start`, such as a header.

    `naive` reads a whole source in the plainest way, and returns the fields of good records and the bytes of bad ones.
    Format and `naive` must agree with every single byte removed, doubled and swapped with its neighbour.
    """
    shape = random.Random(seed)
    format_ = format_of(settings if isinstance(settings, FormatSettings) else FormatSettings(**settings))
    rows = [_alone(format_, start, record, good=True) for record in good]
    for record in bad:
        _alone(format_, start, record, good=False)
    mixed = [*zip(good, rows, strict=True), *((record, []) for record in bad)]
    shape.shuffle(mixed)
    stream = start + b"".join(record for record, _ in mixed)
    result = RawLedger.of(format_, [[stream]]).values()
    expected = sorted(repr(row) for _, own in mixed for row in own)
    assert result[0] == expected, f"records change their neighbours in {stream!r}: {result[0]} instead of {expected}"
    if naive is not None:
        _compare(format_, stream, naive)
    damaged = (_damage(stream, shape) for _ in range(DAMAGES))
    for piece in [stream, start, b"", *(start + record for record in malformed), *damaged]:
        _check_cuts(format_, piece, shape)
    _check_cuts(format_, stream, shape, ways=[[stream[at : at + 1] for at in range(len(stream))]])
    return [row for own in rows for row in own]


def _alone(format_: Format, start: bytes, record: bytes, *, good: bool) -> list[dict[str, Any]]:
    """Return the rows of a record that is a source of its own; a bad record has none."""
    ledger = RawLedger.of(format_, [[start + record]])
    rows, rejects = ledger.fields(), ledger.rejects()
    if good:
        places = {(row["chunk"], row["offset"]) for row in rows}
        assert (len(places), rejects) == (1, []), f"{record!r} is not one good record: {rows}, {rejects}"
    else:
        assert (rows, bool(rejects)) == ([], True), f"{record!r} is not rejected: {rows}, {rejects}"
    names = format_.parser.schema.names
    return [{name: row[name] for name in names} for row in sorted(rows, key=itemgetter("ordinal"))]


def _check_cuts(format_: Format, stream: bytes, shape: random.Random, ways: Iterable[list[bytes]] = ()) -> None:
    """Read a stream whole and cut, in order and out of order, in one microbatch and in several."""
    whole = RawLedger.of(format_, [[stream]]).values()
    random_cuts = (cut(stream, shape.choices(range(len(stream) + 1), k=shape.randrange(8))) for _ in range(WAYS))
    for parts in [*ways, *random_cuts]:
        rows = chunks(parts)
        order = [*range(rows.num_rows), *shape.choices(range(rows.num_rows), k=shape.randrange(3))]
        ordered, several, at_once = RawLedger(format_), RawLedger(format_), RawLedger(format_)
        ordered.read(rows)
        shape.shuffle(order)
        versions = sorted(shape.choices(range(1, 5), k=len(order)))
        arrived = rows.take(pa.array(order)).set_column(5, VERSION_NAME, pa.array(versions, pa.int64()))
        for version in sorted(set(versions)):
            several.read(arrived.filter(pc.equal(arrived[VERSION_NAME], version)))
        at_once.read(arrived)
        case = f"{stream!r} cut into {parts}"
        assert ordered.values() == whole, f"{case} gives {ordered.values()}, but {whole} as a whole"
        assert several.values() == whole, f"{case} gives {several.values()} in the order {order}, not {whole}"
        assert (at_once.fields(), at_once.rejects()) == (several.fields(), several.rejects()), f"{case}: places differ"
        assert at_once.versions() == several.versions(), f"{case}: a record needs bytes after its last one"
        assert several.byte_count() == 0, f"{case}: bytes are left"
    if can_spread(format_):
        partial = SCHEMA.empty_table()
        apart, together = stage_in_two_passes(rows, partial, format_), stage(rows, partial, format_)
        assert comparable(apart) == comparable(together), f"{case}: two passes differ"


def _compare(format_: Format, stream: bytes, naive: Naive) -> None:
    for changed in _one_byte_off(stream):
        good, rejects = RawLedger.of(format_, [[changed]]).values()
        other_good, other_bad = naive(changed)
        message = f"{changed!r} gives {good} and {rejects}, but the naive reader {other_good} and {other_bad}"
        assert good == sorted(map(repr, other_good)), message
        assert sorted(content for _, content in rejects) == sorted(other_bad), message


def _one_byte_off(stream: bytes) -> Iterator[bytes]:
    """Yield the bytes, and the bytes with each single byte removed, doubled and swapped with its neighbour."""
    yield stream
    for at in range(len(stream)):
        yield stream[:at] + stream[at + 1 :]
        yield stream[: at + 1] + stream[at:]
        yield stream[:at] + stream[at + 1 : at + 2] + stream[at : at + 1] + stream[at + 2 :]


def _damage(stream: bytes, shape: random.Random) -> bytes:
    """Return bytes with a few of them changed, removed, doubled or cut off."""
    data = bytearray(stream)
    for _ in range(shape.randrange(1, 4)):
        at, kind = shape.randrange(len(data) + 1), shape.randrange(5)
        if kind == 0:
            data[at : at + 1] = bytes([shape.randrange(256)])
        elif kind == 1:
            del data[at : at + shape.randrange(1, 9)]
        elif kind == 2:  # noqa: PLR2004 one number for each kind
            data[at:at] = data[at : at + shape.randrange(1, 9)]
        elif kind == 3:  # noqa: PLR2004
            del data[at:]
        else:
            data[at:at] = shape.choice(stream or b"\0").to_bytes(1, "big")
    return bytes(data)


VERSION_NAME = "version"


class RawLedger:
    """A ledger's partial rows of raw sources, and everything that was staged; each read checks the books."""

    def __init__(self, format_: Format) -> None:
        """Start empty."""
        self.format = format_
        self.partial = SCHEMA.empty_table()
        self.staged: list[StageResult] = []

    @classmethod
    def of(cls, format_: Format, reads: Iterable[list[bytes]]) -> RawLedger:
        """Read lists of chunks, each as a source of its own in one microbatch."""
        ledger = cls(format_)
        for number, parts in enumerate(reads):
            ledger.read(chunks(parts, f"s{number}"))
        return ledger

    def read(self, rows: pa.Table) -> None:
        """Read rows in a microbatch, given the partial rows that earlier ones left."""
        staged = stage(rows, self.partial, self.format)
        known, ids = set(self.partial["id"].to_pylist()), staged.partial["id"].to_pylist()
        assert len(set(ids)) == len(ids), f"a partial row comes twice: {ids}"
        assert [id_ in known for id_ in ids] == staged.partial["known"].to_pylist(), (
            "a partial row has the wrong `known`"
        )
        kept = self.partial.filter(pc.invert(pc.is_in(self.partial["id"], staged.partial["id"].combine_chunks())))
        new = staged.partial.filter(pc.invert(pc.fill_null(staged.partial[tables.DELETED], False)))
        before, self.partial = self.byte_count(), pa.concat_tables([kept, new])
        volume = staged.volume
        assert volume.read == volume.framed + volume.rejected + volume.repeated + volume.kept, f"bytes: {volume}"
        assert volume.kept == self.byte_count() - before, f"bytes that are kept: {volume}"
        rejected_bytes = pc.sum(pc.binary_length(staged.rejects["content"])).as_py() or 0
        assert volume.rejected == rejected_bytes, f"bytes that are rejected: {volume}"
        self.staged.append(staged)

    def fields(self) -> list[dict[str, Any]]:
        """Return the good records with their places, in a fixed order."""
        rows = [row for stage in self.staged for row in stage.fields.drop_columns([VERSION]).to_pylist()]
        return sorted(rows, key=repr)

    def rejects(self, *reasons: str) -> list[dict[str, Any]]:
        """Return the bad records and chunks with these reasons, by default all but repeated chunks."""
        rows = [row for stage in self.staged for row in stage.rejects.to_pylist()]
        chosen = (row for row in rows if row["reason"] in reasons or (not reasons and row["reason"] != REPEATED))
        timeless = ({name: row[name] for name in row if name not in {VERSION_NAME, "arrived_in"}} for row in chosen)
        return sorted(timeless, key=repr)

    def values(self) -> tuple[list[str], list[tuple[str, bytes]]]:
        """Return what does not depend on cuts: the fields of good records, and reasons and bytes of bad ones."""
        names = self.format.parser.schema.names
        good = sorted(repr({name: row[name] for name in names}) for row in self.fields())
        return good, sorted((row["reason"], row["content"]) for row in self.rejects())

    def versions(self) -> list[Any]:
        """Return the version in which each record, good or bad, was known."""
        parts = [part for stage in self.staged for part in ((stage.fields, VERSION), (stage.rejects, VERSION_NAME))]
        columns = [[part[name].to_pylist() for name in ("chunk", version)] for part, version in parts]
        return sorted(row for column in columns for row in zip(*column, strict=True))

    def byte_count(self) -> int:
        """Return how many bytes are kept in partial rows."""
        return pc.sum(pc.binary_length(self.partial["content"])).as_py() or 0


def chunks(parts: list[bytes], source: str = "s", version: int = 1, last: bool = True) -> pa.Table:
    """Return the chunks of a source in one version; each was received a microsecond after the previous one."""
    count = len(parts)
    return pa.table(
        {
            "raw_source": [source] * count,
            "sequence": range(1, count + 1),
            "bytes": pa.array(parts, pa.binary()),
            "last": [last and number == count for number in range(1, count + 1)],
            "received_at": pa.array(range(count), pa.int64()).cast(TIME),
            VERSION_NAME: [version] * count,
        }
    ).cast(RAW.append(pa.field(VERSION_NAME, pa.int64())))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Return bytes cut at places, which may be beyond the end."""
    ends = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


def stage_in_two_passes(rows: pa.Table, partial: pa.Table, format_: Format) -> StageResult:
    """Stage rows as executors and the driver do together, each row by itself."""
    apart = [rows.slice(at, 1) for at in range(max(1, rows.num_rows))]
    columns = with_places(format_.parser.schema)
    summaries = pa.concat_tables([summarise_chunks(row, format_) for row in apart])
    plan = ParsePlan.of(summaries, partial, format_)
    parsed, rests = run_second_pass(plan, apart, format_)
    records = parsed.filter(pc.and_(pc.is_null(parsed["reject"]), pc.is_null(parsed["rest"])))
    bad = pa.Table.from_struct_array(parsed["reject"].drop_null())
    refused = pc.sum(bad["bytes"]).as_py() or 0
    others = rows.filter(pc.is_in(rows["raw_source"], pa.array(plan.others, pa.string())))
    numbered = records.select(range(len(columns))).rename_columns(columns.names)
    bodies = StageResult(
        numbered.append_column(VERSION, records[VERSION_NAME]),
        bad,
        SCHEMA.empty_table(),
        ByteCounts(plan.byte_count, plan.byte_count - refused, refused, 0, 0),
    )
    return bodies + plan.finish(rests, partial, format_) + stage(others, partial, format_)


def run_second_pass(plan: ParsePlan, apart: list[pa.Table], format_: Format) -> tuple[pa.Table, pa.Table]:
    """Return the result of the second pass, and the rests in it."""
    columns = with_places(format_.parser.schema)
    parsed = pa.concat_tables([parse_bodies(row, plan.bodies, format_, columns) for row in apart])
    return parsed, pa.Table.from_struct_array(parsed["rest"].drop_null())


def comparable(staged: StageResult) -> list[Any]:
    """Return the staged rows in a fixed order."""
    tables: Iterator[pa.Table] = iter([staged.fields, staged.rejects, staged.partial.drop_columns(["framing"])])
    return [*(sorted(map(repr, table.to_pylist())) for table in tables), staged.volume]

"""The state of a raw source between two microbatches: its queue, its unfinished bytes and the state of framing.

In the ledger a source is one `partial` row, and one more for each chunk that is held or not yet decompressed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME, string_array, string_scalar, times_to_numbers
from windrow.columnar.compiled import Ints, compile_lazily, inline
from windrow.formats.raw.queue import Queue, QueuedChunk
from windrow.model import tables

Pieces = np.ndarray[tuple[int, int], np.dtype[np.int64]]
BEGIN, CHUNK, OFFSET, RECEIVED_AT, VERSION = range(5)  # columns of pieces
SCHEMA = pa.schema(
    [
        ("id", pa.string()), ("state", pa.string()), ("known", pa.bool_()), ("deleted", pa.bool_()),
        ("raw_source", pa.string()),
        ("chunk", pa.int64()), ("last", pa.bool_()), ("content", pa.binary()), ("framing", pa.string()),
        ("digests", pa.binary()), ("received_at", TIME), ("depot_version", pa.int64()),
    ]
)  # fmt: skip

READ = ["raw_source", "chunk", "last", "content", "framing", "digests", "received_at", "depot_version"]


@dataclass(slots=True)
class RawSourceState:
    """The state of one source.

    `tail` has the bytes of the unfinished record. `pieces` has a row for each chunk they come from: the position in the
    tail at which it begins, the chunk's number, the offset in the chunk, when it was received (microseconds), and the
    depot version in which it was framed. `state` is the state of framing after these bytes, under the format with this
    `fingerprint`. `header` is the first record, if it names the columns.

    `encoded` has the chunks of compressed bytes from the first unfinished frame on. `decoded` is the last chunk in
    which a frame began, and the size of the content of such frames.
    """

    name: str
    queue: Queue = field(default_factory=Queue)
    tail: bytes = b""
    pieces: Pieces = field(default_factory=lambda: np.empty((0, 5), np.int64))
    state: int = 0
    has_started: bool = False
    header: bytes | None = None
    fingerprint: str = ""
    encoded: list[QueuedChunk] = field(default_factory=list)
    decoded: tuple[int, int] = (0, 0)

    @property
    def byte_count(self) -> int:
        """Return the number of bytes that are kept."""
        return len(self.tail) + sum(len(chunk.content) for chunk in self._chunks)

    @property
    def _chunks(self) -> list[QueuedChunk]:
        """Return the kept chunks: those before the queue's next one are not decompressed yet."""
        return [*self.encoded, *self.queue.waiting.values()]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the source in the ledger."""
        framing: dict[str, Any] = {
            "state": self.state,
            "begun": self.has_started,
            "header": None if self.header is None else self.header.decode("latin-1"),
            "format": self.fingerprint,
            "pieces": self.pieces.tolist(),
        }
        if self.encoded or self.decoded[0]:
            framing |= {"decoded": self.decoded, "encoded": [[piece.offset, piece.version] for piece in self.encoded]}
        yield {
            "id": f"raw/{encode_name(self.name)}",
            "raw_source": self.name,
            "chunk": self.queue.next,
            "last": self.queue.ended,
            "content": self.tail,
            "framing": json.dumps(framing),
            "digests": self.queue.digests,
        }
        for chunk in self._chunks:
            yield {
                "id": f"raw/{encode_name(self.name)}/{chunk.number}",
                "raw_source": self.name,
                "chunk": chunk.number,
                "last": chunk.last,
                "content": chunk.content,
                "received_at": chunk.received_at,
                "depot_version": chunk.version,
            }

    @classmethod
    def of(cls, rows: list[Mapping[str, Any]]) -> RawSourceState:
        """Read a source from its rows, with times in microseconds."""
        (own,) = [row for row in rows if row["framing"] is not None]
        framing = json.loads(own["framing"])
        names = ("chunk", "content", "last", "received_at", "depot_version")
        kept = sorted(
            [QueuedChunk.of(*(row[name] for name in names)) for row in rows if row is not own], key=attrgetter("number")
        )
        encoded = [chunk for chunk in kept if chunk.number < own["chunk"]]
        # The row of a chunk that had to wait has the version in which the chunk arrived.
        places = framing.get("encoded", ())
        encoded = [
            piece._replace(offset=at, version=version) for piece, (at, version) in zip(encoded, places, strict=True)
        ]
        waiting = {chunk.number: chunk for chunk in kept[len(encoded) :]}
        return cls(
            name=own["raw_source"],
            queue=Queue(own["chunk"], own["last"], waiting, own["digests"]),
            tail=own["content"],
            pieces=np.array(framing["pieces"], np.int64).reshape(-1, 5),
            state=framing["state"],
            has_started=framing["begun"],
            header=None if framing["header"] is None else framing["header"].encode("latin-1"),
            fingerprint=framing["format"],
            encoded=encoded,
            decoded=tuple(framing.get("decoded", (0, 0))),
        )


def sources_of(partial: pa.Table, names: Collection[str] | None = None) -> dict[str, RawSourceState]:
    """Return the sources with these names in the `partial` rows of a ledger, or all sources."""
    if names is not None:
        partial = partial.filter(pc.is_in(partial["raw_source"], string_array(list(names))))
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in times_to_numbers(partial.select(READ)).to_pylist():
        rows[row["raw_source"]].append(row)
    return {name: RawSourceState.of(own) for name, own in rows.items()}


def changes(before: pa.Table, touched: Iterable[RawSourceState]) -> pa.Table:
    """Return the rows that change: those of the touched sources, and those of chunks that are no longer held."""
    known: dict[str, set[str]] = defaultdict(set)
    touched = list(touched)
    own_before = before.filter(pc.is_in(before["raw_source"], string_array([source.name for source in touched])))
    for id_, name in zip(own_before["id"].to_pylist(), own_before["raw_source"].to_pylist(), strict=True):
        known[name].add(id_)
    rows: list[dict[str, Any]] = []
    for source in touched:
        own, ids = list(source.rows()), known[source.name]
        cut = source.encoded[0].number if source.encoded else None  # the only chunk that may have become shorter
        rows += [
            row | {"known": row["id"] in ids}
            for row in own
            if row["id"] not in ids or "framing" in row or row["chunk"] == cut
        ]
        gone = ids - {row["id"] for row in own}
        rows += [{"id": id_, tables.DELETED: True, "known": True, "raw_source": source.name} for id_ in sorted(gone)]
    columns = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in SCHEMA}
    return pa.table(columns | {"state": pa.repeat(string_scalar("partial"), len(rows))}, SCHEMA)


@compile_lazily
def locate_spans(pieces: Pieces, start: Ints, end: Ints, spans: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the chunk and the offset where spans begin, and when their last bytes came; `pieces` is transposed."""
    chunk, offset = np.empty(len(spans), np.int64), np.empty(len(spans), np.int64)
    received = np.empty(len(spans), np.int64)
    first, last = 0, 0
    for number in range(len(spans)):
        span = spans[number]
        first = _piece(pieces[BEGIN], first, start[span])
        last = _piece(pieces[BEGIN], last, end[span] - 1)
        chunk[number] = pieces[CHUNK, first]
        offset[number] = pieces[OFFSET, first] + start[span] - pieces[BEGIN, first]
        received[number] = pieces[RECEIVED_AT, last]
    return chunk, offset, received


@inline
def _piece(begins: Ints, piece: int, position: int) -> int:
    """Return which piece a position is in, -1 if before all; fast if positions ascend from call to call."""
    last = len(begins) - 1
    piece = min(max(piece, 0), last)
    while piece < last and begins[piece + 1] <= position:
        piece += 1
    while piece >= 0 and begins[piece] > position:
        piece -= 1
    return piece


def encode_name(name: str) -> str:
    """Return a name percent-encoded as a component of an id."""
    for special, code in (("%", "%25"), ("/", "%2F"), ("\0", "%00")):
        name = name.replace(special, code)
    return name

"""Sort the rows of a raw depot into chunks, by source and depot version, and rows that are not valid chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.formats.codecs import CodecError
from windrow.formats.raw.queue import Chunk
from windrow.formats.texts import Texts
from windrow.model.chunks import FIRST, RAW

INVALID = "format_invalid"
REQUIRED = ("raw_source", "sequence", "bytes", "received_at")
Decode = Callable[[bytes], bytes] | None


def chunks_of(rows: pa.Table, decode: Decode) -> dict[str, dict[int, list[Chunk]]]:
    """Return the chunks in rows (`RAW` and `version`) by source and depot version; `decode` decompresses the contents.

    The versions of a source are in order.
    """
    chunks: dict[str, dict[int, list[Chunk]]] = defaultdict(lambda: defaultdict(list))
    for name, number, content, last, received_at, version in _chunks(rows, pc.is_null(_faults(rows))):
        chunks[name][version].append(_chunk(number, content, bool(last), received_at, version, decode))
    return chunks


def invalid_of(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows that are not chunks, as rows of `stage.REJECTS` with times in microseconds.

    They are numbered within their version, independent of the order of reading.
    """
    by = [(name, "ascending") for name in ("version", "raw_source", "sequence", "received_at")]
    faults = rows.append_column("fault", _faults(rows))
    bad = faults.filter(pc.is_valid(faults["fault"])).sort_by(by)
    found: list[dict[str, Any]] = []
    details = bad["fault"].to_pylist()
    for (name, number, content, _, received_at, version), detail in zip(_values(bad), details, strict=True):
        follows = bool(found) and found[-1]["version"] == version
        found.append(
            {
                "raw_source": name,
                "chunk": number,
                "received_at": received_at,
                "version": version,
                "arrived_in": version,
                "ordinal": found[-1]["ordinal"] + 1 if follows else 0,
                "reason": INVALID,
                "detail": detail,
                "bytes": len(content or b""),
                "content": content or b"",
            }
        )
    return found


def _chunk(number: int, content: memoryview, last: bool, received_at: int, version: int, decode: Decode) -> Chunk:
    if decode is None:
        return Chunk.of(number, content, last, received_at, version)
    try:
        return Chunk.of(number, decode(bytes(content)), last, received_at, version)
    except CodecError as error:
        return Chunk.of(number, content, last, received_at, version)._replace(broken=str(error))


def _chunks(rows: pa.Table, good: pa.ChunkedArray) -> Iterator[tuple[Any, ...]]:
    """Yield the values of good rows in version order; contents are views, not copies."""
    contents = [content for array in rows["bytes"].chunks for content in _contents(Texts.of(array))]
    others = list(_values(rows.set_column(rows.column_names.index("bytes"), "bytes", pa.nulls(rows.num_rows))))
    chosen = np.flatnonzero(good.to_numpy())
    for row in chosen[np.argsort(rows["version"].to_numpy()[chosen], kind="stable")].tolist():
        name, number, _, *more = others[row]
        yield name, number, contents[row], *more


def _contents(texts: Texts) -> Iterator[memoryview]:
    buffer = texts.buffer.data
    for begin, end in zip(texts.begin.tolist(), texts.end.tolist(), strict=True):
        yield buffer[begin:end]


def _values(rows: pa.Table) -> zip[tuple[Any, ...]]:
    columns = [rows[name] for name in RAW.names] + [rows["version"]]
    return zip(
        *(
            (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
            for column in columns
        ),
        strict=True,
    )


def _faults(rows: pa.Table) -> pa.ChunkedArray:
    """Return for each row why it is not a chunk, NULL for a good one."""
    fault = pa.chunked_array([pa.nulls(rows.num_rows, pa.string())])
    for name in REQUIRED:
        fault = pc.coalesce(fault, pc.if_else(pc.is_null(rows[name]), f"{name} is NULL", None))
    early = pc.fill_null(pc.less(rows["sequence"], FIRST), False)
    return pc.coalesce(fault, pc.if_else(early, f"sequence is less than {FIRST}", None))

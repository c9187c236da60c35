"""Which files of open batches a microbatch has to read, by what the log says of each.

A file holds the streams between its first and its last id. It is read when a stream with messages lies between them,
or when the clock of one of its sources has passed the end of its first window. Where the log does not say, it is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model import clock, tables
from windrow.model.step import BatchFilter

SAID = ("num_records", "null_count.source", "min.id", "min.source", "min.window_end", "max.id", "max.source")


@dataclass(frozen=True, slots=True)
class Extent:
    """What the log says of a file: rows, first and last id, first and last source, first end of a window (or None)."""

    rows: int | None
    ids: tuple[str, str] | None
    sources: tuple[str, str] | None  # None as well where a source is NULL
    window_end: int | None  # microseconds

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Extent:
        """Return the extent in an add action of delta-rs, flattened, with times as numbers."""
        return cls(
            said.get("num_records"),
            _bounds(said, "id"),
            _bounds(said, "source") if said.get("null_count.source") == 0 else None,
            said.get("min.window_end"),
        )

    @classmethod
    def held(cls, rows: pa.Table) -> Extent:
        """Return the extent of a file with these rows."""
        said: dict[str, Any] = {"num_records": rows.num_rows}
        for name in ("id", "source", "window_end"):
            if name in rows.column_names:
                column = rows[name].cast(pa.int64()) if name == "window_end" else rows[name]
                bounds = pc.min_max(column)
                said |= {f"{bound}.{name}": bounds[bound].as_py() for bound in ("min", "max")}
                said[f"null_count.{name}"] = column.null_count
        return cls.of(said)


class Reach:
    """How far what is wanted reaches."""

    def __init__(self, wanted: BatchFilter) -> None:
        """Put the streams and the clocks in order."""
        streams = wanted.streams()
        self._everywhere = streams is None
        self._prefixes: list[str] = []
        if streams is not None:
            ids = tables.identifier(
                tables.BATCH_ID, streams["source"].combine_chunks(), streams["key"].combine_chunks()
            )
            self._prefixes = sorted(pc.binary_join_element_wise(ids, "", "/").to_pylist())
        known = wanted.passed.source.drop_null()
        order = pc.array_sort_indices(known)
        self._sources = known.take(order).to_pylist()
        self._passed = wanted.passed.of(known.take(order))
        self._latest = int(np.max(wanted.passed.floor, initial=clock.UNKNOWN))

    def into(self, file: Extent) -> bool:
        """Tell whether a file may hold something that is wanted."""
        # guard: passed-files-read
        # guard: stream-files-read
        return self._everywhere or self._touches(file) or self._passes(file)

    def _touches(self, file: Extent) -> bool:
        if file.ids is None:
            return True
        first, last = file.ids
        at = bisect_left(self._prefixes, first)
        if at and first.startswith(self._prefixes[at - 1]):
            return True
        return at < len(self._prefixes) and self._prefixes[at] <= last

    def _passes(self, file: Extent) -> bool:
        if file.window_end is None:
            return True
        if file.sources is None:
            return file.window_end <= self._latest
        first, last = file.sources
        among = self._passed[bisect_left(self._sources, first) : bisect_left(self._sources, last + "\0")]
        return file.window_end <= int(np.max(among, initial=clock.UNKNOWN))


def _bounds(said: Mapping[str, Any], column: str) -> tuple[str, str] | None:
    least, greatest = said.get(f"min.{column}"), said.get(f"max.{column}")
    return None if least is None or greatest is None else (least, greatest)

"""Prune the files of open batches that a microbatch need not read, by the statistics in the log.

A file holds the streams between its first and its last id. It is read if a stream with messages lies between them, or
if the clock of one of its sources has passed the end of its first window. Without statistics it is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model import clock
from windrow.model.id_filter import IdFilter, Range
from windrow.model.open_batches import FAR, BatchFilter

STATISTICS = (
    "null_count.source", "min.id", "min.source", "min.window_end", "min.revision", "max.id", "max.source",
    "max.revision",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Extent:
    """Statistics of a file: first and last id, first and last source, first window end; None if unknown.

    Its rows have revisions from the first to the last one; if unknown, these are the least and greatest possible.
    """

    ids: tuple[str, str] | None
    sources: tuple[str, str] | None  # None also if a source is NULL
    window_end: int | None  # microseconds
    first_revision: int
    last_revision: int

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> Extent:
        """Return the extent from a flattened add action of delta-rs, with times as numbers."""
        return cls(
            _bounds(stats, "id"),
            _bounds(stats, "source") if stats.get("null_count.source") == 0 else None,
            stats.get("min.window_end"),
            first if (first := stats.get("min.revision")) is not None else 0,
            last if (last := stats.get("max.revision")) is not None else FAR,
        )

    @classmethod
    def of_rows(cls, rows: pa.Table) -> Extent:
        """Return the extent of a file with these rows."""
        stats: dict[str, Any] = {}
        for name in ("id", "source", "window_end", "revision"):
            if name in rows.column_names:
                column = rows[name].cast(pa.int64()) if name == "window_end" else rows[name]
                bounds = pc.min_max(column)
                stats |= {f"{bound}.{name}": bounds[bound].as_py() for bound in ("min", "max")}
                stats[f"null_count.{name}"] = column.null_count
        return cls.of(stats)

    def may_hold(self, ranges: Sequence[Range]) -> bool:
        """Tell whether the file may hold an id in one of the ranges, which are in order."""
        if self.ids is None:
            return True
        first, last = self.ids
        at = bisect_right(ranges, first, key=itemgetter(1))
        return at < len(ranges) and ranges[at][0] <= last


class FilePruner:
    """Tells which files may hold the open batches of a filter."""

    def __init__(self, batch_filter: BatchFilter) -> None:
        """Sort the streams and the clocks of the filter."""
        streams = batch_filter.streams
        self._everywhere = streams is None
        self._ranges = [] if streams is None else IdFilter.of_streams(streams).ranges()
        known = batch_filter.ends_before.source.drop_null()
        order = pc.array_sort_indices(known)
        self._sources = known.take(order).to_pylist()
        self._passed = batch_filter.ends_before.of(known.take(order))
        self._latest = int(np.max(batch_filter.ends_before.floor, initial=clock.UNKNOWN))

    def may_hold(self, file: Extent) -> bool:
        """Tell whether a file may hold a batch of the filter."""
        # guard: passed-files-read
        # guard: stream-files-read
        return self._everywhere or file.may_hold(self._ranges) or self._passes(file)

    def _passes(self, file: Extent) -> bool:
        if file.window_end is None:
            return True
        if file.sources is None:
            return file.window_end <= self._latest
        first, last = file.sources
        among = self._passed[bisect_left(self._sources, first) : bisect_left(self._sources, last + "\0")]
        return file.window_end <= int(np.max(among, initial=clock.UNKNOWN))


def _bounds(stats: Mapping[str, Any], column: str) -> tuple[str, str] | None:
    least, greatest = stats.get(f"min.{column}"), stats.get(f"max.{column}")
    return None if least is None or greatest is None else (least, greatest)

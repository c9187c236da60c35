"""Select live rows by their ids, or by the first components of their ids.

An id is `kind/component/...`, such as `state/<name>/<first key column>/<second>`. A slash in a component is encoded. So
ids with the same first components continue with a slash, and form one range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import filter_rows
from windrow.model import tables

Range = tuple[str, str]
MANY = 50  # ranges; a condition lists no more of them one by one


@dataclass(frozen=True, slots=True)
class IdFilter:
    """Selects rows by their ids, or by the first `components` of an id; `ids` then has only these components.

    With `itself`, an id that has no further components may exist, and is selected too.
    """

    ids: pa.Array
    components: int | None = None
    itself: bool = False

    @classmethod
    def of_raw_sources(cls, names: pa.Array, depot: str | None) -> IdFilter:
        """Return the filter for the `partial` rows of some raw sources of a depot, which is None for a batcher."""
        ids = tables.identifier("raw", names)
        if depot is None:
            return cls(ids, components=2, itself=True)
        prefix = tables.identifier("of", pa.array([depot]))[0]
        return cls(pc.binary_join_element_wise(prefix, ids, "/"), components=4, itself=True)

    @classmethod
    def of_streams(cls, streams: pa.Table) -> IdFilter:
        """Return the filter for the batches of some streams (`source`, `key`)."""
        names = [streams[name].combine_chunks() for name in ("source", "key")]
        return cls(tables.identifier(tables.BATCH_ID, *names), components=3)

    def among(self, rows: pa.Table) -> pa.Table:
        """Return the rows that this filter selects."""
        return filter_rows(rows, self._selects(rows["id"]))

    def union(self, other: IdFilter) -> IdFilter:
        """Return a filter for what this or another filter selects; both have the same number of components."""
        return replace(self, ids=pa.concat_arrays([self.ids, other.ids]))

    def difference(self, other: IdFilter) -> IdFilter:
        """Return this filter without the ids that another filter selects too."""
        return replace(self, ids=self.ids.filter(pc.invert(other._selects(self.ids))))

    def ranges(self) -> list[Range]:
        """Return the ranges of the selected ids in order: each is its first id and the id before which it ends."""
        if self.components is None:
            return [(key, f"{key}\0") for key in sorted(set(self.ids.to_pylist()))]
        own = {(key, f"{key}\0") for key in self.ids.to_pylist()} if self.itself else set()
        prefixes = {f"{key}/" for key in self.ids.to_pylist()}
        # Sorted with the slash: `a-1/` before `a/`. 0 is the character after the slash.
        # guard: open-batches-of-all-keys
        return sorted(own | {(prefix, f"{prefix[:-1]}0") for prefix in prefixes})

    def spans(self) -> list[Range]:
        """Return a few ranges for a condition; many become a single one, which also has the ids in between."""
        ranges = self.ranges()
        return ranges if len(ranges) <= MANY else [(ranges[0][0], ranges[-1][1])]

    def _selects(self, ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        if self.components is not None:
            first = f"^(?P<first>[^/]*(?:/[^/]*){{{self.components - 1}}})"
            ids = pc.struct_field(pc.extract_regex(ids, first), "first")
        return pc.is_in(ids, self.ids)

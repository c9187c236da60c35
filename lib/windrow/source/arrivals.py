"""New versions of a depot, and how they are cut into slices of whole versions, one for each microbatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import filter_rows
from windrow.model.commits import ListedVersions
from windrow.rows.arrow import ArrowRows, version_of
from windrow.rows.rows import Function
from windrow.settings.settings import Settings
from windrow.source.conversion import Conversion
from windrow.source.slices import Slice, slice_of


@dataclass(frozen=True, slots=True)
class Arrivals:
    """New versions of the depot, from one read of the change feed; `listed` are the versions that it covers.

    `counts` says how many rows each version added according to the log (None: unknown), `byte_count` how many bytes.
    All rows up to version `last` (None: unknown) are here.
    """

    listed: ListedVersions
    counts: Mapping[int, int | None]
    byte_count: Mapping[int, int]
    settings: Settings
    conversion: Conversion
    last: int | None

    def after(self, version: int, max_messages: int, last_version: int | None = None) -> Slice | None:
        """Return the next slice after `version`: whole versions of at most `max_messages`, or one larger version.

        With `last_version`, the slice ends at this version at the latest.
        """
        left = {at: count for at, count in self.counts.items() if last_version is None or at <= last_version}
        while versions := self.conversion.next_versions(left, self.byte_count, version, max_messages):
            arrived = self._slice({at: self.counts[at] for at in versions})
            if arrived is not None:
                return arrived
            version = versions[-1]
        return None

    def _slice(self, counts: Mapping[int, int | None]) -> Slice | None:
        """Return the slice of some versions, None if they have no new rows."""
        raise NotImplementedError

    def _fill_slice(self, rows: pa.Table, counts: Mapping[int, int | None], to_messages: Function) -> Slice | None:
        """Return the slice of the versions with rows; one with rows in the log stays in, whatever was read."""
        present = set(version_of(rows).unique().to_pylist())
        filled = {at: count for at, count in counts.items() if count or at in present}
        chosen = filter_rows(rows, pc.is_in(version_of(rows), pa.array(filled, pa.int64())))
        return slice_of(self.conversion, ArrowRows(chosen), filled, to_messages) if filled else None

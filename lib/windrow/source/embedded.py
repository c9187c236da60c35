"""Read the new versions of a depot with delta-rs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from windrow.columnar.arrow import plain, text
from windrow.delta.log import added, identity
from windrow.delta.row_changes import changes
from windrow.delta.table import Snapshot, known_snapshot, reading
from windrow.errors import DepotChanged, DepotUnreadable, first_line
from windrow.model.commits import CHANGE, FEED_COLUMNS, VERSION, ListedVersions
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.slices import Slice
from windrow.source.source import Source


class EmbeddedSource(Source):
    """Reads a depot with delta-rs."""

    def require_mapping(self) -> None:
        """Raise ExpressionError for a mapping that only Spark can run."""
        self._conversion()[0].require_embedded()

    @contextmanager
    def arrived(self, after: int, upto: int) -> Iterator[Arrivals | None]:
        """Give the versions after `after`, up to `upto`; their rows are read slice by slice."""
        self._keep_read(after, upto)
        snapshot = known_snapshot(self.place, "depot", upto)
        depot, log = identity(snapshot.table), self.log
        commits = log.commits(after, upto)
        counts = added(commits, after, upto)
        if not any(count != 0 for count in counts.values()):
            yield None
            return
        conversion = Conversion.of(self.settings, depot, self._as_rows)
        new = {version: count for version, count in conversion.counts(counts).items() if count != 0}
        byte_count = conversion.byte_count(log, counts)
        listed = ListedVersions.of(depot.id, after + 1, commits)
        yield EmbeddedArrivals(listed, new, byte_count, self.settings, conversion, upto, snapshot)


@dataclass(frozen=True, slots=True)
class EmbeddedArrivals(Arrivals):
    """New versions of the depot; each slice is a separate read of its versions."""

    snapshot: Snapshot

    def _slice(self, counts: Mapping[int, int | None]) -> Slice | None:
        first, last = min(counts), max(counts)
        feed = self._feed(first, last)
        # guard: read-as-listed
        self._require_listed()
        inserted = pc.equal(feed[CHANGE], text("insert"))
        rows = self.conversion.new_rows(self._mapped(feed), inserted, self.settings.on_depot_delete)
        return self._filled(rows, counts, self.conversion.apply)

    def _require_listed(self) -> None:
        """Raise DepotChanged if another table has replaced the depot since its log was listed."""
        with reading(self.settings.depot, "depot"):
            same = self.snapshot.is_in_log()
        if not same:
            self.snapshot.commits.clear()  # some may be of the other table
            raise DepotChanged(
                f"the depot {self.settings.depot} was replaced by another table while it was read",
                "Nothing was written. Bring the depot back, or begin a new ledger (--ledger).",
            )

    def _feed(self, first: int, last: int) -> pa.Table:
        try:
            return plain(changes(self.snapshot.table, first, last, known=self.snapshot).read_all())
        except (DeltaError, pa.ArrowException, OSError) as error:
            self._require_listed()  # the files of another table have other names
            raise DepotUnreadable(
                f"depot versions {first} to {last} cannot be read: {first_line(error)}",
                "Check the permissions of what it names, or bring it back from a copy. If it is lost, a new ledger "
                f'(--ledger) can begin after it: start_from = "version:{last + 1}".',
            ) from error

    def _mapped(self, feed: pa.Table) -> pa.Table:
        """Return the feed with its depot columns mapped to those of a message; that of a raw depot is unchanged."""
        if self.conversion.mapping is None or self.conversion.format is not None:
            return feed
        mapped = self.conversion.apply(feed.drop_columns([name for name in FEED_COLUMNS if name in feed.column_names]))
        for name in (CHANGE, VERSION):
            mapped = mapped.append_column(name, feed[name])
        return mapped

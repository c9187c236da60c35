"""Read the new versions of a depot with delta-rs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from tempfile import TemporaryFile
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from windrow.columnar.arrow import string_scalar, to_plain_types
from windrow.delta.log import count_added_rows, identity
from windrow.delta.row_changes import changes
from windrow.delta.table import TableSnapshot, shared_snapshot, translate_read_errors
from windrow.errors import DepotChangedError, DepotUnreadableError, ExpressionError, first_line
from windrow.model.commits import CHANGE, FEED_COLUMNS, VERSION, ListedVersions
from windrow.rows.spilled import Room, SpilledRows
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.depot_rows import StateChanges
from windrow.source.shared_rows import SharedRows
from windrow.source.slices import ChunkParser, Slice, slice_of
from windrow.source.source import Source

MESSAGE_BYTES = 1_000  # in memory while it is processed, with what the process uses anyway: 1.4 million took 1.35 GB
RECORD_BYTES = 25  # of messages in memory for each byte of a chunk: measured with records of 40 bytes
MAX_SHOWN = 300  # letters of a row in an error
CHUNK_BYTES = 3  # in memory for each byte of the chunks that are framed together; `windrow ingest` commits 256 MiB


class EmbeddedSource(Source):
    """Reads a depot with delta-rs; with `shared`, rows that another reader in this process read are not read again."""

    shared: SharedRows | None = None

    def require_mapping(self) -> None:
        """Raise ExpressionError for a mapping that only Spark can run."""
        self._conversion()[0].require_embedded()

    @contextmanager
    def arrivals(self, after: int, last_version: int) -> Iterator[Arrivals | None]:
        """Yield the versions after `after`, up to `last_version`; their rows are read slice by slice."""
        self._keep_read(after, last_version)
        snapshot = shared_snapshot(self.place, "depot", last_version)
        depot, log = identity(snapshot.table), self.log
        commits = log.commits(after, last_version)
        counts = count_added_rows(commits, after, last_version)
        if not any(count != 0 for count in counts.values()):
            yield None
            return
        conversion = Conversion.of(self.settings, depot, self._as_rows)
        new = {version: count for version, count in conversion.counts(counts).items() if count != 0}
        byte_count = conversion.byte_count(log, counts)
        listed = ListedVersions.of(depot.id, after + 1, commits)
        parts = _parts(conversion, self._as_rows)
        with ExitStack() as spill:
            yield EmbeddedArrivals(
                listed, new, byte_count, self.settings, conversion, last_version, snapshot, parts, spill, self.shared
            )


def _parts(conversion: Conversion, as_rows: bool | StateChanges) -> bool:
    """Tell whether what is read can be divided by stream: messages for the batcher, not for a topology."""
    return as_rows is False and not conversion.verbatim


def _release_tables(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables, and drop each."""
    while tables:
        yield tables.pop(0)


def _close(file: IO[bytes]) -> None:
    """Close a file that is not kept: on a full disk even closing fails."""
    with suppress(OSError):
        file.close()


@dataclass(frozen=True, slots=True)
class EmbeddedArrivals(Arrivals):
    """New versions of the depot; each slice is a separate read of its versions."""

    snapshot: TableSnapshot
    in_parts: bool  # whether a version that is larger than memory is read in parts
    spill: ExitStack  # closes the files of versions read so
    shared: SharedRows | None = None

    def _slice(self, counts: Mapping[int, int | None]) -> Slice | None:
        self.spill.close()  # the files of the previous slice
        most, feed = self.settings.max_memory_bytes, self._shared_feed(min(counts), max(counts))
        raw = self.conversion.format is not None
        room = Room.of_chunks(most // CHUNK_BYTES) if raw else Room.of_messages(most // MESSAGE_BYTES)
        fits = most // RECORD_BYTES if raw else room.most
        read, size = list[pa.Table](), 0
        for piece in feed:
            read.append(piece)
            size += room.size(piece)
            if self.in_parts and size > fits:
                rows = map(self._new_rows, chain(_release_tables(read), feed))
                spilled = SpilledRows.of(rows, room, self._file())
                self._require_listed()
                return slice_of(self.conversion, spilled, counts, self.conversion.apply, self._parser(spilled))
        new = self._new_rows(pa.concat_tables(read))
        # guard: read-as-listed
        self._require_listed()
        return self._fill_slice(new, counts, self.conversion.apply)

    def _parser(self, chunks: SpilledRows) -> ChunkParser | None:
        """Return a parser of a raw depot's chunks, part by part."""
        if self.conversion.format is None:
            return None
        from windrow.source.raw_parts import parse_in_parts

        room = Room.of_messages(self.settings.max_memory_bytes // MESSAGE_BYTES)
        return partial(parse_in_parts, chunks, self.conversion.format, self.conversion.apply, room, self._file)

    def _file(self) -> IO[bytes]:
        """Return a new file without a name, which is closed when reading ends."""
        file = TemporaryFile()  # noqa: SIM115 - the stack closes it
        self.spill.callback(_close, file)
        return file

    def _new_rows(self, feed: pa.Table) -> pa.Table:
        inserted = pc.equal(feed[CHANGE], string_scalar("insert"))
        return self.conversion.new_rows(self._map_feed(feed), inserted, self.settings.on_depot_change)

    def _require_listed(self) -> None:
        """Raise DepotChangedError if another table has replaced the depot since its log was listed."""
        with translate_read_errors(self.settings.depot, "depot"):
            same = self.snapshot.is_in_log()
        if not same:
            self.snapshot.commits.clear()  # some may be of the other table
            raise DepotChangedError(
                f"the depot {self.settings.depot} was replaced by another table while it was read",
                "Nothing was written. Bring the depot back, or begin a new ledger (--ledger).",
            )

    def _shared_feed(self, first: int, last: int) -> Iterator[pa.Table]:
        """Yield the change feed of versions, which other readers may have read."""
        if self.shared is None:
            yield from self._feed(first, last)
            return
        for version in range(first, last + 1):
            key = (self.settings.depot, self.listed.depot_id, version, self.listed.fingerprints.get(version))
            yield from self.shared.rows(key, partial(self._feed, version, version))

    def _feed(self, first: int, last: int) -> Iterator[pa.Table]:
        """Yield the change feed of versions, piece by piece; at least one piece."""
        try:
            reader = changes(self.snapshot.table, first, last, known=self.snapshot)
            yield to_plain_types(reader.schema.empty_table())
            for batch in reader:
                yield to_plain_types(pa.Table.from_batches([batch]))
        except (DeltaError, pa.ArrowException, OSError) as error:
            self._require_listed()  # the files of another table have other names
            raise DepotUnreadableError(
                f"depot versions {first} to {last} cannot be read: {first_line(error)}",
                "Check the permissions of the file that it names, or restore it from a copy. If it is lost, a new "
                f'ledger (--ledger) can begin after it: start_from = "version:{last + 1}".',
            ) from error

    def _map_feed(self, feed: pa.Table) -> pa.Table:
        """Return the feed with its depot columns mapped to those of a message; that of a raw depot is unchanged."""
        if self.conversion.mapping is None or self.conversion.format is not None:
            return feed
        rows = feed.drop_columns([name for name in FEED_COLUMNS if name in feed.column_names])
        try:
            mapped = self.conversion.apply(rows)
        except ExpressionError as error:
            if error.row is None:
                raise
            [row], version = rows.slice(error.row, 1).to_pylist(), feed[VERSION][error.row]
            raise ExpressionError(
                f"{error.message} in depot version {version}, row {str(row)[:MAX_SHOWN]}", error.hint
            ) from error
        for name in (CHANGE, VERSION):
            mapped = mapped.append_column(name, feed[name])
        return mapped

"""Slices: whole versions of a depot, one slice for each microbatch. There is one class for each kind of content.

Where the rows are (here, or on Spark's executors) is the business of `windrow.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import pyarrow as pa

from windrow.columnar.arrow import conform
from windrow.errors import RowCountMismatchError
from windrow.formats.format import Format
from windrow.formats.raw.stage import ByteCounts
from windrow.model.summary import SUMMARY, merge_summaries, summarise_messages
from windrow.rows.rows import Function, Rows
from windrow.source.conversion import Conversion
from windrow.source.raw_records import ParsedChunks, PartialOf, parse_here

if TYPE_CHECKING:
    from windrow.rows.frame import FrameRows

# Parses chunks where they are, on the executors or on disk, given the partial rows of the ledger.
ChunkParser: TypeAlias = Callable[[PartialOf], ParsedChunks]


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole depot versions: `expected` has those with rows, and how many rows each added by its log.

    The number is None if it is not checked.
    """

    rows: Rows
    expected: Mapping[int, int | None]

    @property
    def processed_on(self) -> str:
        """Return where the rows are: `driver` or `executors`."""
        return self.rows.processed_on

    @property
    def volume(self) -> ByteCounts | None:
        """Return the byte counts of a raw depot, None for other depots."""
        return None

    def parse(self, partial: PartialOf) -> Slice:
        """Return the slice as messages or rows; those of a raw depot follow the `partial` rows of the ledger."""
        return self

    def summarise(self, latest: int) -> pa.Table:
        """Return `summary.summarise_messages` of all rows; without sources, how many rows each version has."""
        counted = self.rows.versions()
        summary = pa.table({"version": list(counted), "messages": list(counted.values())})
        return conform(summary, SUMMARY).sort_by("version")

    def times(self) -> pa.Table | None:
        """Return `source, key, event_time` of its messages; None if only the executors know them, or there are none."""
        return None

    def extra_rows(self, microbatch: int, schema: pa.Schema) -> list[Rows]:
        """Return the other ledger rows from a raw depot, with `known`: rejects and partial rows."""
        return []


class PlainSlice(Slice):
    """Rows that are not messages, as they are, with `version` or the feed's column."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MessageSlice(Slice):
    """Messages with `version`; those of a raw depot with what else was `parsed`."""

    parsed: ParsedChunks | None = None

    @property
    def volume(self) -> ByteCounts | None:
        """Return the byte counts of a raw depot."""
        return None if self.parsed is None else self.parsed.volume

    def summarise(self, latest: int) -> pa.Table:
        """Return the summary of its messages; rejected records count as read, and every version appears."""
        parts = [self._summary(latest)]
        if self.parsed is not None:
            read = dict.fromkeys(self.expected, 0) | dict(self.parsed.rejected)
            counted = pa.table({"version": list(read), "messages": list(read.values())})
            parts.append(conform(counted, SUMMARY))
        return merge_summaries(pa.concat_tables(parts))

    def _summary(self, latest: int) -> pa.Table:
        if self.processed_on == "executors":
            from windrow.source.spark_summary import can_summarise, summarise_on_spark

            rows = cast("FrameRows", self.rows)
            if can_summarise(rows):
                return summarise_on_spark(rows, latest)
        return self.rows.map(partial(summarise_messages, latest=latest), SUMMARY).table()

    def times(self) -> pa.Table | None:
        """Return source, key and event time of its messages; those that lack one are invalid."""
        return times_of(self.rows.table()) if self.processed_on == "driver" else None

    def extra_rows(self, microbatch: int, schema: pa.Schema) -> list[Rows]:
        """Return what a format rejected and left unfinished."""
        return [] if self.parsed is None else self.parsed.extra_rows(microbatch, schema)


@dataclass(frozen=True, slots=True)
class RawSlice(Slice):
    """Chunks of a raw depot (`chunks.RAW` and `version`), and how the fields of records become messages."""

    format: Format
    to_messages: Function
    parser: ChunkParser | None = None

    def parse(self, partial: PartialOf) -> MessageSlice:
        """Return the messages. Raises RowCountMismatchError."""
        # guard: executors-whole-read
        require_whole(self.rows.versions(), self.expected)
        if self.parser is None:
            parsed = parse_here(self.rows.table(), partial, self.format, self.to_messages)
        else:
            parsed = self.parser(partial)
        return MessageSlice(parsed.messages, dict.fromkeys(self.expected), parsed)


def times_of(messages: pa.Table) -> pa.Table:
    """Return source, key and event time of messages; those that lack one are invalid."""
    return messages.select(["source", "key", "event_time"]).drop_null()


def slice_of(
    conversion: Conversion,
    rows: Rows,
    expected: Mapping[int, int | None],
    to_messages: Function,
    parser: ChunkParser | None = None,
) -> Slice:
    """Return the slice of rows as the depot stores them; `to_messages` maps the fields of records."""
    if conversion.verbatim:
        return PlainSlice(rows, expected)
    if conversion.format is None:
        return MessageSlice(rows, expected)
    return RawSlice(rows, expected, conversion.format, to_messages, parser)


def require_whole(counted: Mapping[int, int], expected: Mapping[int, int | None]) -> None:
    """Raise RowCountMismatchError for a version that has a different number of rows than its commit says it added."""
    for version, count in expected.items():
        if count is not None and counted.get(version, 0) != count:
            raise RowCountMismatchError(
                f"depot version {version} returned {counted.get(version, 0)} rows, but its commit added {count}",
                "Nothing was written. If this happens again, the depot's files do not match its log.",
            )

"""Read the depot's messages from its change feed: what each version added, as far back as the feed goes."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import MessagesError, first_line
from windrow.expressions import Mapping, recorded_text
from windrow.model.commits import CHANGE, VERSION
from windrow.model.messages import COLUMNS, DEFAULTS, INVALID_VALUE, conform
from windrow.reading.arrivals import UNREADABLE
from windrow.reading.feed import apply
from windrow.reading.tables import DepotTable, changes_of
from windrow.verify.columns import MESSAGE, as_messages
from windrow.verify.snapshot import RawRows


@dataclass(frozen=True, slots=True)
class Depot:
    """The messages of the depot versions from `first` to `last`, with `version`; those before `readable` are missing.

    `why` says why. `formatted` has what else a raw depot gives, and `several` the places of records that swallowed
    others (`raw.grammar`); they are None for any other depot.
    """

    messages: pa.Table
    first: int
    readable: int
    last: int
    why: str = "can no longer be read"
    formatted: RawRows | None = None
    several: pa.Table | None = None

    @classmethod
    def unread(cls, first: int, last: int, why: str) -> Depot:
        """Return a depot of which nothing could be read."""
        messages = pa.schema([*MESSAGE.items(), ("version", pa.int64())]).empty_table()
        return cls(as_messages(messages), first, last + 1, last, why)

    def upto(self, version: int) -> pa.Table:
        """Return the messages of the versions up to `version`."""
        return self.messages.filter(pc.less_equal(self.messages["version"], version))

    def counted(self, version: int) -> pa.Table:
        """Return `version, messages` for each version up to `version` with messages; refused records count."""
        parts = [(self.messages, 1)]
        if self.formatted:
            parts += [(self.formatted.rejected, 1), (self.formatted.byte_count, 0)]
        rows = pa.concat_tables(
            [rows.select(["version"]).append_column("messages", pa.repeat(each, rows.num_rows)) for rows, each in parts]
        )
        rows = rows.filter(pc.less_equal(rows["version"], version))
        counted = rows.group_by("version", use_threads=False).aggregate([("messages", "sum")])
        return counted.rename_columns(["version", "messages"])

    def findings(self) -> list[str]:
        """Say which versions can no longer be read, if there are any."""
        if self.readable == self.first:
            return []
        return [f"depot versions {self.first}..{self.readable - 1} {self.why}"]


def read_depot(
    table: DepotTable,
    first: int,
    last: int,
    columns: dict[str, str],
    recorded: dict[int, str | None],
    payload: pa.DataType,
    without: Collection[int] = (),
) -> Depot:
    """Read the versions from `first` to `last`, or as many of the latest as can still be read.

    `recorded` has the mapping that the history recorded for each version that was read (JSON); `columns` is the
    mapping of all others, and `payload` the type of the ledger's payloads. Versions in `without` are not read. Raises
    MessagesError when a column of a message is missing, ExpressionError for a mapping that needs Spark.
    """
    last = min(last, table.version())
    names = [field.name for field in table.schema().fields]
    ways = {text: way_of(names, text) for text in set(recorded.values()) or {recorded_text(columns)}}
    present = None if any(ways.values()) else [name for name in (*MESSAGE, INVALID_VALUE) if name in names]
    readable = first
    try:
        added = added_by(table, first, last, present, without)
    except UNREADABLE:
        readable = _readable_from(table, first, last, without)
        added = added_by(table, readable, last, present, without)
    versions = added[VERSION].unique().to_pylist()
    alike: dict[str | None, list[int]] = {text: [] for text in ways}
    for version in versions:
        alike.setdefault(recorded.get(version, recorded_text(columns)), []).append(version)
    parts = [_part(added, alike[text], ways[text] if text in ways else way_of(names, text), payload) for text in alike]
    return Depot(pa.concat_tables(parts, promote_options="default"), first, readable, last)


def _readable_from(table: DepotTable, first: int, last: int, without: Collection[int]) -> int:
    """Return the first version from which on all can be read, or `last` + 1: a bisection, since the oldest go first."""
    low, high = first + 1, last + 1
    while low < high:
        middle = (low + high) // 2
        try:
            added_by(table, middle, last, [], without)
        except UNREADABLE:
            low = middle + 1
        else:
            high = middle
    return high


def way_of(names: list[str], text: str | None) -> Mapping | None:
    """Return the mapping, as the history recorded it, that turns rows with these columns into messages."""
    columns = json.loads(text or "{}")
    missing = [name for name in COLUMNS if name not in DEFAULTS and name not in [given.lower() for given in names]]
    if missing and not columns:
        raise MessagesError(
            f"the depot has no column {missing[0]!r}", "Map its columns under [depot.columns] in windrow.toml."
        )
    return Mapping.of_depot(columns, names)


def _part(added: pa.Table, versions: list[int], way: Mapping | None, payload: pa.DataType) -> pa.Table:
    """Return the rows of some versions as messages with `version`."""
    rows = added.filter(pc.is_in(added[VERSION], pa.array(versions, added[VERSION].type)))
    try:
        return as_messages(apply(way, rows, payload)) if way else _messages(rows, payload)
    except (MessagesError, pa.ArrowException) as error:
        raise MessagesError(
            f"the depot has a column of another type than a message's: {first_line(error.__cause__ or error)}",
            "Map its columns under [depot.columns] in windrow.toml.",
        ) from error


def added_by(
    table: DepotTable, first: int, last: int, names: list[str] | None, without: Collection[int] = ()
) -> pa.Table:
    """Return columns of the rows that versions added, except those in `without`.

    None are all columns, because delta-rs cannot select one whose name has a dot.
    """
    wanted = None if names is None else [*names, CHANGE, VERSION]
    ends = pairwise([first - 1, *sorted(version for version in without if first <= version <= last), last + 1])
    parts = [changes_of(table, a + 1, b - 1, wanted).read_all() for a, b in ends if a + 1 < b]
    if not parts:
        return _nothing(table, names)
    feed = pa.concat_tables(parts, promote_options="default")
    return feed.filter(pc.equal(feed[CHANGE], "insert"))


def _nothing(table: DepotTable, names: list[str] | None) -> pa.Table:
    fields = [field for field in pa.schema(table.schema().to_arrow()) if names is None or field.name in names]
    return pa.schema([*fields, pa.field(CHANGE, pa.string()), pa.field(VERSION, pa.int64())]).empty_table()


def _messages(added: pa.Table, payload: pa.DataType) -> pa.Table:
    """Return rows as they are; a column that the depot does not have gets its default, or NULL."""
    names = [*COLUMNS, *(name for name in (INVALID_VALUE,) if name in added.column_names)]
    messages = conform(added, payload).select(names)
    return as_messages(messages.append_column("version", added[VERSION]))

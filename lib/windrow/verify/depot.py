"""Read the depot's messages from its change feed: what each version added, as far back as the feed goes."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import times_to_numbers
from windrow.errors import MessagesError, first_line
from windrow.expressions import ColumnMapping, recorded_text
from windrow.model.commits import CHANGE, VERSION
from windrow.model.messages import COLUMNS, DEFAULTS, INVALID_VALUE, conform
from windrow.reading.feed import UNREADABLE, apply
from windrow.reading.tables import DepotTable, changes_of
from windrow.verify.columns import MESSAGE, as_messages
from windrow.verify.parts import PartedRows
from windrow.verify.snapshot import RawRows

READ_BYTES = 16_000_000  # of rows mapped to messages in one call: few calls, and little memory
COUNTS = pa.schema([("version", pa.int64()), ("messages", pa.int64())])
BESIDE = [("version", pa.int64()), (INVALID_VALUE, pa.string())]
NO_MESSAGES = as_messages(pa.schema([*MESSAGE.items(), *BESIDE]).empty_table())


@dataclass(frozen=True, slots=True)
class DepotMessages:
    """The messages of the depot versions from `first` to `last`; those before `readable` are missing.

    `why` says why. `per_version` has `version, messages`, the counts. `formatted` has what else a raw depot yields, and
    `several` the places of records that swallowed others (`raw.grammar`); both are None for any other depot.
    """

    per_version: pa.Table
    first: int
    readable: int
    last: int
    why: str = "can no longer be read"
    formatted: RawRows | None = None
    several: pa.Table | None = None

    @classmethod
    def unread(cls, rows: PartedRows, first: int, last: int, why: str) -> DepotMessages:
        """Return a depot that could not be read at all."""
        return cls(add_messages((), rows), first, last + 1, last, why=why)

    def counts_by_version(self, version: int) -> pa.Table:
        """Return `version, messages` for each version up to `version` with messages; refused records count."""
        parts = [self.per_version]
        if self.formatted:
            parts += [_count(self.formatted.rejected), _count(self.formatted.byte_count, 0)]
        rows = pa.concat_tables(parts)
        rows = rows.filter(pc.less_equal(rows["version"], version))
        summed = rows.group_by("version", use_threads=False).aggregate([("messages", "sum")])
        return summed.rename_columns(["version", "messages"])

    def findings(self) -> list[str]:
        """Say which versions can no longer be read, if any."""
        if self.readable == self.first:
            return []
        return [f"depot versions {self.first}..{self.readable - 1} {self.why}"]


def add_messages(messages: Iterable[pa.Table], rows: PartedRows) -> pa.Table:
    """Put messages, with `version` and times as numbers, into `rows` as the table `depot`; count them by version.

    Raises TableUnwritableError for a full disk.
    """
    rows.clear()  # an earlier attempt may have left rows
    counts = [COUNTS.empty_table()]
    for part in chain([NO_MESSAGES], messages):
        rows.add("depot", message_rows(part))
        counts.append(_count(part))
    rows.close_blocks()
    return pa.concat_tables(counts)


def message_rows(messages: pa.Table) -> pa.Table:
    """Return messages with times as numbers, and with the column in which a mapping reports rejected values."""
    if INVALID_VALUE not in messages.column_names:
        messages = messages.append_column(INVALID_VALUE, pa.nulls(messages.num_rows, pa.string()))
    return times_to_numbers(messages.select(NO_MESSAGES.column_names))


def _count(rows: pa.Table, each: int = 1) -> pa.Table:
    """Return `version, messages` of rows that count as `each` messages."""
    summed = rows.group_by("version", use_threads=False).aggregate([([], "count_all")])
    return pa.table([summed["version"], pc.multiply(summed["count_all"], each)], COUNTS)


def read_depot(
    table: DepotTable,
    rows: PartedRows,
    first: int,
    last: int,
    columns: dict[str, str],
    recorded: dict[int, str | None],
    payload: pa.DataType,
    without: Collection[int] = (),
) -> DepotMessages:
    """Read the versions from `first` to `last`, or the latest of them that can still be read, into `rows`.

    `recorded` has the mapping that the history recorded for each version that was read (JSON); `columns` is the
    mapping of all others, and `payload` the type of the ledger's payloads. Versions in `without` are not read. Raises
    MessagesError when a column of a message is missing, ExpressionError for a mapping that needs Spark.
    """
    last = min(last, table.version())
    names = [field.name for field in table.schema().fields]
    ways = {text: find_mapping(names, text) for text in set(recorded.values()) or {recorded_text(columns)}}
    present = None if any(ways.values()) else [name for name in (*MESSAGE, INVALID_VALUE) if name in names]

    def messages(readable: int) -> Iterator[pa.Table]:
        for way in ways.values():  # a column of another type is an error, even if no row is read
            yield _part(_nothing(table, present), [], way, payload)
        for added in rows_added_by(table, readable, last, present, without):
            alike: dict[str | None, list[int]] = defaultdict(list)
            for version in added[VERSION].unique().to_pylist():
                alike[recorded.get(version, recorded_text(columns))].append(version)
            for text, versions in alike.items():
                yield _part(added, versions, ways[text] if text in ways else find_mapping(names, text), payload)

    try:
        readable, per_version = first, add_messages(messages(first), rows)
    except UNREADABLE:
        readable = readable_from(lambda middle: deque(rows_added_by(table, middle, last, [], without), 0), first, last)
        per_version = add_messages(messages(readable), rows)
    return DepotMessages(per_version, first, readable, last)


def readable_from(read: Callable[[int], object], first: int, last: int) -> int:
    """Return the first version from which all can be read, or `last` + 1, by bisection, since the oldest go first."""
    low, high = first + 1, last + 1
    while low < high:
        middle = (low + high) // 2
        try:
            read(middle)
        except UNREADABLE:
            low = middle + 1
        else:
            high = middle
    return high


def find_mapping(names: list[str], text: str | None) -> ColumnMapping | None:
    """Return the mapping, as the history recorded it, that turns rows with these columns into messages."""
    columns = json.loads(text or "{}")
    missing = [name for name in COLUMNS if name not in DEFAULTS and name not in [values.lower() for values in names]]
    if missing and not columns:
        raise MessagesError(
            f"the depot has no column {missing[0]!r}", "Map its columns under [depot.columns] in windrow.toml."
        )
    return ColumnMapping.of_depot(columns, names)


def _part(added: pa.Table, versions: list[int], way: ColumnMapping | None, payload: pa.DataType) -> pa.Table:
    """Return the rows of some versions as messages with `version`."""
    rows = added.filter(pc.is_in(added[VERSION], pa.array(versions, added[VERSION].type)))
    try:
        return as_messages(apply(way, rows, payload)) if way else added_messages(rows, payload)
    except (MessagesError, pa.ArrowException) as error:
        raise MessagesError(
            f"the depot has a column of another type than a message's: {first_line(error.__cause__ or error)}",
            "Map its columns under [depot.columns] in windrow.toml.",
        ) from error


def rows_added_by(
    table: DepotTable, first: int, last: int, names: list[str] | None, without: Collection[int] = ()
) -> Iterator[pa.Table]:
    """Yield columns of the rows that versions added, except those in `without`, about `READ_BYTES` at a time.

    None reads all columns, because delta-rs cannot select a column whose name has a dot.
    """
    columns = None if names is None else [*names, CHANGE, VERSION]
    ends = pairwise([first - 1, *sorted(version for version in without if first <= version <= last), last + 1])
    waiting, size = list[pa.Table](), 0
    for batch in chain.from_iterable(changes_of(table, a + 1, b - 1, columns) for a, b in ends if a + 1 < b):
        rows = pa.Table.from_batches([batch])
        waiting.append(rows.filter(pc.equal(rows[CHANGE], "insert")))
        size += batch.nbytes
        if size > READ_BYTES:
            yield pa.concat_tables(waiting, promote_options="default")
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting, promote_options="default")


def _nothing(table: DepotTable, names: list[str] | None) -> pa.Table:
    fields = [field for field in pa.schema(table.schema().to_arrow()) if names is None or field.name in names]
    return pa.schema([*fields, pa.field(CHANGE, pa.string()), pa.field(VERSION, pa.int64())]).empty_table()


def added_messages(added: pa.Table, payload: pa.DataType) -> pa.Table:
    """Return rows as messages without mapping them; a column that is missing gets its default, or NULL."""
    names = [*COLUMNS, *(name for name in (INVALID_VALUE,) if name in added.column_names)]
    messages = conform(added, payload).select(names)
    return as_messages(messages.append_column("version", added[VERSION]))

"""The result of a microbatch: the ledger rows to write, their counts, and the totals of the open batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, Union

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import filter_rows, string_array, string_scalar
from windrow.ledger.file_writer import WrittenFile
from windrow.model import tables
from windrow.model.floors import Cuts
from windrow.model.open_batches import MESSAGES, SCHEMA, OpenBatchTotals
from windrow.model.tables import CHANGED, DELETED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Rows for the ledger with `known`: True if it has an earlier version of the row. On Spark's executors they also have
# `changed`, which is False for open batches that stay unchanged: these are counted, not written.
Rows: TypeAlias = Union[pa.Table, "DataFrame"]


@dataclass(frozen=True, slots=True)
class MicrobatchCounts:
    """Counts of the rows to write, by kind.

    `rows` are all that a commit writes, with the tombstones of open batches that close; `versions` of them are not
    final. `obsolete` versions no longer count after the commit: earlier ones, and tombstones. Open batches are written
    with `open_messages` messages.
    """

    rows: int
    versions: int
    obsolete: int
    opened: int
    closed: int
    rejected: int
    reasons: Mapping[str, int]
    open_messages: int = 0

    @classmethod
    def of(cls, rows: pa.Table) -> MicrobatchCounts:
        """Count rows that a `Step` returned; a batch counts as opened if its row is new."""
        groups = rows.group_by(["state", "known", DELETED, "reason"]).aggregate([([], "count_all")])
        if MESSAGES not in rows.column_names:
            return cls.combine(groups)
        is_open = pc.equal(rows["state"], string_scalar(tables.OPEN))
        sizes = pc.list_value_length(filter_rows(rows, is_open)[MESSAGES])
        return cls.combine(groups, pc.sum(sizes).as_py() or 0)

    @classmethod
    def with_states(cls, rows: pa.Table, states: Iterable[pa.Table]) -> MicrobatchCounts:
        """Count the rows of a topology, and those of its states."""
        columns = ["state", "known", DELETED]
        parts = [rows.select([*columns, "reason"]), *(state.select(columns) for state in states)]
        return cls.of(pa.concat_tables(parts, promote_options="default"))

    @classmethod
    def combine(cls, groups: pa.Table, open_messages: int = 0) -> MicrobatchCounts:
        """Count from a table of `state, known, deleted, reason, count_all`."""
        state, known, count = groups["state"], groups["known"], groups["count_all"]
        live, gone = tables.is_live(state), pc.fill_null(groups[DELETED], False)

        def total(mask: pa.ChunkedArray) -> int:
            return int(pc.sum(pc.if_else(mask, count, 0)).as_py() or 0)

        batches, closed = pc.is_in(state, string_array(["open", "closed"])), pc.equal(state, string_scalar("closed"))
        ended = total(pc.and_(closed, known))
        rejected = pc.equal(state, string_scalar("rejected"))
        refused = groups.filter(rejected).sort_by("reason")
        return cls(
            rows=int(pc.sum(count).as_py() or 0) + ended,
            versions=total(live) + ended,
            obsolete=total(pc.and_(live, known)) + total(pc.and_(live, gone)) + 2 * ended,
            opened=total(pc.and_not(batches, known)),
            closed=total(closed),
            rejected=total(rejected),
            reasons=dict(zip(refused["reason"].to_pylist(), refused["count_all"].to_pylist(), strict=True)),
            open_messages=open_messages,
        )


# Counts of rows with `changed`, of one task or of all; those of open batches are by source, with the sums of `SCHEMA`.
BY = ("state", "known", CHANGED, DELETED, "reason", "source")
GROUPS = pa.schema(
    [
        ("state", pa.string()), ("known", pa.bool_()), (CHANGED, pa.bool_()), (DELETED, pa.bool_()),
        ("reason", pa.string()), ("source", pa.string()), *list(SCHEMA)[1:], ("messages_written", pa.int64()),
    ]
)  # fmt: skip


def count_rows(rows: pa.Table) -> pa.Table:
    """Count rows of a result that have `changed`, in the columns of `GROUPS`."""
    is_open = pc.equal(rows["state"], string_scalar(tables.OPEN))
    new = pc.if_else(pc.and_(is_open, rows[CHANGED]), pc.list_value_length(rows[MESSAGES]), None)
    source = pc.if_else(is_open, rows["source"], None)
    counted = rows.select([*BY[:-1], "message_count", "bytes", "window_end"])
    counted = counted.append_column("source", source).append_column("new", new)
    sums = [([], "count_all"), ("message_count", "sum"), ("bytes", "sum"), ("window_end", "min"), ("new", "sum")]
    return counted.group_by(list(BY)).aggregate(sums).rename_columns(GROUPS.names).cast(GROUPS)


def totals(groups: pa.Table) -> tuple[MicrobatchCounts, OpenBatchTotals]:
    """Return the counts of the rows to write, and the totals of the batches that are open afterwards."""
    left = groups.filter(pc.equal(groups["state"], string_scalar(tables.OPEN)))
    sums = [(name, "min" if name == "next_window_end" else "sum") for name in SCHEMA.names[1:]]
    opened = left.group_by("source").aggregate(sums).rename_columns(SCHEMA.names).cast(SCHEMA)
    written = pc.sum(groups["messages_written"]).as_py() or 0
    changed = groups.filter(groups[CHANGED]).rename_columns({SCHEMA.names[1]: "count_all"})
    return MicrobatchCounts.combine(changed, written), OpenBatchTotals.of(opened)


@dataclass(frozen=True, slots=True)
class MicrobatchResult:
    """The ledger rows of a microbatch and their counts.

    `files` are those that Spark's tasks have written, with rows that are nowhere else; a commit adds them.

    `states` has further rows, by the state of a topology: `id`, `state`, `deleted`, `known`, and only the columns of
    the state. `cuts` says where a flush cuts. `open` has the totals of the sources whose open batches changed,
    `processed_on` says where it was processed. `history` has columns that the algorithm adds to the history row.
    `rules` are the settings that a rollback puts in force again.
    """

    rows: Rows
    counts: MicrobatchCounts
    open: OpenBatchTotals = field(default_factory=OpenBatchTotals.none)
    cuts: Cuts = field(default_factory=Cuts.none)
    processed_on: str = "driver"
    history: Mapping[str, object] = field(default_factory=dict)
    states: Mapping[str, pa.Table] = field(default_factory=dict)
    files: Sequence[WrittenFile] = ()
    rules: str | None = None

    @classmethod
    def nothing(cls, schema: pa.Schema) -> MicrobatchResult:
        """Return a result without rows, in the columns of a ledger."""
        rows = schema.append(pa.field("known", pa.bool_())).empty_table()
        return cls(rows, MicrobatchCounts.of(rows))

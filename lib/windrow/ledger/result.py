"""The result of a microbatch: the ledger rows to write, their counts, and the totals of the open batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, Union

import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.floors import Floors
from windrow.model.open_batches import OpenBatches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Rows for the ledger with `known` (True if the row replaces a live one). On Spark's executors they also have `changed`,
# which is False for open batches that stay unchanged.
Rows: TypeAlias = Union[pa.Table, "DataFrame"]


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of the rows to write, by kind; `known` rows replace live ones."""

    rows: int
    known: int
    opened: int
    closed: int
    rejected: int
    reasons: Mapping[str, int]

    @classmethod
    def of(cls, rows: pa.Table) -> Counts:
        """Count rows that a `Step` returned; a batch counts as opened if its row is new."""
        return cls.combine(rows.group_by(["state", "known", "reason"]).aggregate([([], "count_all")]))

    @classmethod
    def with_states(cls, rows: pa.Table, states: Iterable[pa.Table]) -> Counts:
        """Count the rows of a topology, and those of its states."""
        columns = ["state", "known"]
        parts = [rows.select([*columns, "reason"]), *(one.select(columns) for one in states)]
        return cls.of(pa.concat_tables(parts, promote_options="default"))

    @classmethod
    def combine(cls, groups: pa.Table) -> Counts:
        """Count from a table of `state, known, reason, count_all`."""

        def total(*states: str, known: bool | None = None) -> int:
            mask = pc.is_in(groups["state"], pa.array(states, pa.string())) if states else pa.scalar(True)
            if known is not None:
                mask = pc.and_(mask, pc.equal(groups["known"], known))
            counted = pc.if_else(mask, groups["count_all"], 0)
            return int(pc.sum(counted).as_py() or 0)

        refused = groups.filter(pc.equal(groups["state"], "rejected")).sort_by("reason")
        return cls(
            rows=total(),
            known=total(known=True),
            opened=total("open", "closed", known=False),
            closed=total("closed"),
            rejected=total("rejected"),
            reasons=dict(zip(refused["reason"].to_pylist(), refused["count_all"].to_pylist(), strict=True)),
        )


@dataclass(frozen=True, slots=True)
class CommitCounts:
    """The row counts that a commit reports."""

    updated: int
    deleted: int
    inserted: int


@dataclass(frozen=True, slots=True)
class MicrobatchResult:
    """The ledger rows of a microbatch and their counts.

    `states` has further rows, by the state of a topology: `id`, `state`, `known`, and only the columns of the state.
    `open` has the totals of the sources whose open batches changed, `path` says where it was processed. `whole` means
    that all open batches were read, so the commit knows all live rows. `history` has columns that the algorithm adds to
    the history row.
    """

    rows: Rows
    counts: Counts
    cuts: Floors
    open: OpenBatches = field(default_factory=OpenBatches.none)
    path: str = "driver"
    whole: bool = False
    history: Mapping[str, object] = field(default_factory=dict)
    states: Mapping[str, pa.Table] = field(default_factory=dict)

    @classmethod
    def nothing(cls, schema: pa.Schema) -> MicrobatchResult:
        """Return a result without rows, in the columns of a ledger."""
        rows = schema.append(pa.field("known", pa.bool_())).empty_table()
        return cls(rows, Counts.of(rows), Floors.empty())

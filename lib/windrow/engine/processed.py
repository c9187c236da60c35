"""What processing gave: the ledger rows of a microbatch, and the counts of them that the commit has to confirm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.floors import Floors


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of the rows to write replace live rows (`known`), and what they are."""

    rows: int
    known: int
    opened: int
    closed: int
    rejected: int
    reasons: Mapping[str, int]

    @classmethod
    def of(cls, rows: pa.Table) -> Counts:
        """Count rows as `Task` returns them; a batch is opened when its row is new."""
        return cls.combine(rows.group_by(["state", "known", "reason"]).aggregate([([], "count_all")]))

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
class Processed:
    """The ledger rows of a microbatch, in whatever form the engine merges, and what is in them.

    `history` has what the algorithm adds to the row of the history, by column.
    """

    rows: Any
    counts: Counts
    cuts: Floors
    history: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def nothing(cls, schema: pa.Schema) -> Processed:
        """Return that nothing changes, in the columns of a ledger."""
        rows = schema.append(pa.field("known", pa.bool_())).empty_table()
        return cls(rows, Counts.of(rows), Floors.empty())

"""An invariant: a condition in Spark SQL on each row of a relation, and the statement that finds failing rows."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A query over the views of a ledger; the names of the views are in braces."""

    name: str
    sql: str

    def over(self, views: Mapping[str, str]) -> str:
        """Return the SQL over the given views: names, or subqueries in their place."""
        return textwrap.dedent(self.sql).strip().format_map(views)


@dataclass(frozen=True, slots=True)
class Invariant:
    """A condition on each row of a relation; NULL counts as a failure.

    `about` says it in a sentence; `shows` lists the columns to show of a failing row.
    """

    name: str
    severity: Severity
    about: str
    relation: Relation
    shows: str
    holds: str

    @property
    def fails(self) -> str:
        """Return the condition that failing rows meet."""
        return f"({self.holds}) IS NOT TRUE"

    def statement(self, views: Mapping[str, str]) -> str:
        """Return the SQL that selects the failing rows."""
        rows = textwrap.indent(self.relation.over(views), "  ")
        return f"SELECT {self.shows}\nFROM (\n{rows}\n)\nWHERE {self.fails}"


def counting(invariants: Sequence[Invariant], views: Mapping[str, str]) -> list[str]:
    """Return for each relation the SQL that counts the failing rows of its invariants, in one row of named columns."""
    relations = dict.fromkeys(invariant.relation for invariant in invariants)
    return [_counting([one for one in invariants if one.relation == relation], views) for relation in relations]


def _counting(invariants: Sequence[Invariant], views: Mapping[str, str]) -> str:
    counts = ", ".join(f"count(CASE WHEN {invariant.fails} THEN 1 END) AS {invariant.name}" for invariant in invariants)
    return f"SELECT {counts} FROM ({invariants[0].relation.over(views)})"

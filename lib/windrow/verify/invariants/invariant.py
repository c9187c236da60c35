"""An invariant: what holds for each row of a relation, in Spark SQL, and the statement that finds the other rows."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows to look at, as SQL over the views of a ledger, whose names stand in braces."""

    name: str
    sql: str

    def over(self, views: Mapping[str, str]) -> str:
        """Return the SQL over views of other names, or over what stands for them."""
        return textwrap.dedent(self.sql).strip().format_map(views)


@dataclass(frozen=True, slots=True)
class Invariant:
    """A condition that holds for each row of a relation; NULL counts as a failure.

    `about` says it in a sentence, `shows` are the columns of a failing row that matter.
    """

    name: str
    severity: Severity
    about: str
    relation: Relation
    shows: str
    holds: str

    @property
    def fails(self) -> str:
        """Return the condition of the rows for which it does not hold."""
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

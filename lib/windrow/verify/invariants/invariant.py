"""An invariant: a condition in Spark SQL on each row of a relation, and the statement that finds failing rows."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A query over the views of a ledger; the names of the views are in braces.

    The names of its invariants begin with `prefix`.
    """

    name: str
    sql: str
    prefix: str = ""

    def over(self, views: Mapping[str, str]) -> str:
        """Return the SQL over the given views: names, or subqueries in their place."""
        return textwrap.dedent(self.sql).strip().format_map(views)

    def invariant(self, name: str, about: str, shows: str, holds: str, severity: Severity = "critical") -> Invariant:
        """Return an invariant of its rows."""
        return Invariant(self.prefix + name, severity, about, self, shows, holds)


@dataclass(frozen=True, slots=True)
class Invariant:
    """A condition on each row of a relation; NULL counts as a failure.

    `about` says it in a sentence; `shows` lists the columns to show of a failing row.
    """

    name: str
    severity: Severity
    about: str
    relation: Relation
    columns: str
    condition: str

    @property
    def fails(self) -> str:
        """Return the condition that failing rows meet."""
        return f"({self.condition}) IS NOT TRUE"

    def statement(self, views: Mapping[str, str]) -> str:
        """Return the SQL that selects the failing rows."""
        rows = textwrap.indent(self.relation.over(views), "  ")
        return f"SELECT {self.columns}\nFROM (\n{rows}\n)\nWHERE {self.fails}"


def counting(invariants: Sequence[Invariant], views: Mapping[str, str]) -> list[str]:
    """Return for each relation the SQL that counts the failing rows of its invariants, in one row of named columns."""
    relations = dict.fromkeys(invariant.relation for invariant in invariants)
    return [
        _counting([invariant for invariant in invariants if invariant.relation == relation], views)
        for relation in relations
    ]


def _counting(invariants: Sequence[Invariant], views: Mapping[str, str]) -> str:
    counts = ", ".join(f"count(CASE WHEN {invariant.fails} THEN 1 END) AS {invariant.name}" for invariant in invariants)
    return f"SELECT {counts} FROM ({invariants[0].relation.over(views)})"


@cache
def for_duckdb(statement: str) -> str:
    """Translate a statement from Spark SQL to DuckDB, which runs it without Spark."""
    from sqlglot import transpile

    return str(transpile(statement, read="spark", write="duckdb")[0])


def identity(kind: str, *texts: str, **numbers: str) -> str:
    """Return the condition that an id is `kind/component/...`: text columns are encoded, numbers stay as they are."""
    components = [*map(encode_component, texts), *(f"CAST({number} AS STRING)" for number in numbers.values())]
    return f"id = concat_ws('/', '{kind}', {', '.join(components)})"


def encode_component(column: str) -> str:
    """Return a component of an id: `%`, `/` and NUL are encoded, NULL is `%N`."""
    text = column
    for special, code in (("'%'", "'%25'"), ("'/'", "'%2F'"), ("chr(0)", "'%00'")):
        text = f"replace({text}, {special}, {code})"
    return f"coalesce({text}, '%N')"

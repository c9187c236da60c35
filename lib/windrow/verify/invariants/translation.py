"""The invariants in the words of DuckDB, which runs them where there is no Spark."""

from __future__ import annotations

from functools import cache


@cache
def for_duckdb(statement: str) -> str:
    """Return a statement in Spark SQL as one for DuckDB that means the same; `embedded`, an extra, brings both."""
    from sqlglot import transpile

    return str(transpile(statement, read="spark", write="duckdb")[0])

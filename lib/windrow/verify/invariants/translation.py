"""Translate the SQL of the invariants for DuckDB, which runs them without Spark."""

from __future__ import annotations

from functools import cache


@cache
def for_duckdb(statement: str) -> str:
    """Translate a statement from Spark SQL to DuckDB. The extra `embedded` installs what this needs."""
    from sqlglot import transpile

    return str(transpile(statement, read="spark", write="duckdb")[0])

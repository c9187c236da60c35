"""The tables in these tests are written by the engines."""

from tests.engine.conftest import engine, spark_engine, world

__all__ = ["engine", "spark_engine", "world"]

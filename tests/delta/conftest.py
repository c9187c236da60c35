"""Tables of the delta room are tested as the engines write them."""

from tests.engine.conftest import engine, spark_engine, world

__all__ = ["engine", "spark_engine", "world"]

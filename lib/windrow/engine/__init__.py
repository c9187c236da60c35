"""Choose and open an engine, which reaches Delta tables. What one engine writes, the other reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from windrow.engine.choice import choose, from_platform, require_spark
from windrow.engine.engine import Engine
from windrow.settings.settings import Settings

__all__ = ["Engine", "choose", "from_platform", "open_engine", "require_spark"]


def open_engine(settings: Settings, session: Any = None, tables: Collection[str] = ()) -> Engine:
    """Return the engine that the settings choose. Raises MissingExtraError or EngineUnavailableError.

    `tables` are locations beside those of the settings. Spark's session starts here, so a run checks first whether it
    has anything to do (`windrow.runtime.run`).
    """
    settings.with_storage()
    if choose(settings.engine, session) == "embedded":
        from windrow.engine.embedded import EmbeddedEngine

        return EmbeddedEngine(settings)
    require_spark(session)
    from windrow.engine.spark.engine import SparkEngine

    return SparkEngine(settings, session, tables)

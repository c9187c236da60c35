"""Choose and open an engine, which reads and writes Delta tables. Both engines write the same ledger."""

from __future__ import annotations

from typing import Any

from windrow.engine.choice import choose, from_platform, require_spark
from windrow.engine.protocol import Engine, Views
from windrow.settings.settings import Settings
from windrow.source.depot_rows import StateChanges

__all__ = ["Engine", "choose", "from_platform", "open_engine", "require_spark"]


def open_engine(
    settings: Settings, session: Any = None, rows: bool | StateChanges = False, views: Views | None = None
) -> Engine:
    """Return the engine that the settings choose. Raises MissingExtra or EngineUnavailable.

    With `rows`, a depot without messages is read as its rows, or as what changed in a state; `views` gives the views of
    a topology. Spark's session starts here, so a run checks first whether it has anything to do
    (`windrow.runtime.run`).
    """
    settings.with_storage()
    if choose(settings.engine, session) == "embedded":
        from windrow.engine.embedded.engine import EmbeddedEngine

        return EmbeddedEngine(settings, rows)
    require_spark(session)
    from windrow.engine.spark.engine import SparkEngine

    return SparkEngine(settings, session, rows, views)

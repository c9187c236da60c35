"""A depot that is read, and what arrives from it."""

from __future__ import annotations

from windrow.engine import Engine
from windrow.settings.settings import Settings
from windrow.source.depot_rows import StateChanges
from windrow.source.source import Source

__all__ = ["Source", "source_of"]


def source_of(engine: Engine, settings: Settings, rows: bool | StateChanges = False) -> Source:
    """Return the source that reads the depot of the settings through an engine.

    With `rows`, a depot without messages is read as its rows, or as the changes of a state.
    """
    if engine.name == "embedded":
        from windrow.source.embedded import EmbeddedSource

        return EmbeddedSource(engine, settings, rows)
    from windrow.source.spark import SparkSource

    return SparkSource(engine, settings, rows)

"""Ingest files into a depot: Parquet and Delta tables as messages, other files as raw chunks; and check formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.engine import Engine
    from windrow.ingest.writer import DepotWriter
    from windrow.settings.settings import Settings


def writer_of(engine: Engine, settings: Settings) -> DepotWriter:
    """Return the writer to the depot of the settings through an engine."""
    if engine.name == "embedded":
        from windrow.ingest.embedded import EmbeddedWriter

        return EmbeddedWriter(engine, settings)
    from windrow.ingest.spark import SparkWriter

    return SparkWriter(engine, settings)

"""The one table that microbatches write: its live rows, and how new ones are committed and folded."""

from __future__ import annotations

from windrow.engine import Engine
from windrow.ledger.ledger import Ledger, Views
from windrow.settings.settings import Settings

__all__ = ["Ledger", "ledger_of"]


def ledger_of(engine: Engine, settings: Settings, views: Views | None = None) -> Ledger:
    """Return the ledger of the settings, reached through an engine; `views` gives the views of a topology."""
    if engine.name == "embedded":
        from windrow.ledger.embedded import EmbeddedLedger

        return EmbeddedLedger(engine, settings, views)
    from windrow.ledger.spark import SparkLedger

    return SparkLedger(engine, settings, views)

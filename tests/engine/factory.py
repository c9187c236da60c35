"""Open an engine by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.probes import Tables, open_tables
from windrow.settings.settings import Settings


@dataclass(frozen=True)
class EngineFactory:
    """Opens one of the engines by name; `session` is the Spark session, None without Spark.

    `more` are settings that are not the defaults, such as those with which Spark's executors process.
    """

    name: str
    session: Any = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, depot: str, ledger: str, **values: Any) -> Settings:
        """Return settings for this engine."""
        return Settings(depot=depot, ledger=ledger, engine=self.name, **{**self.more, **values})

    def open(self, depot: str, ledger: str, **values: Any) -> Tables:
        """Open two tables with the engine."""
        return open_tables(self.settings(depot, ledger, **values), self.session)


EMBEDDED = EngineFactory("embedded")

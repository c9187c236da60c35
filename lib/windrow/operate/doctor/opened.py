"""What the checks of a table get: the table, opened once, and what the ledger says of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from deltalake import DeltaTable

from windrow.delta.locations import is_catalog_name
from windrow.delta.table import open_table
from windrow.errors import OtherDepot, TableMissing, WindrowError
from windrow.operate.doctor.finding import Finding, error, warning
from windrow.reading.tables import Ledger, Progress, open_depot, open_ledger
from windrow.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class OpenDepot:
    """The depot at wall time `now` (microseconds), and how far the ledger has read it; None without a ledger."""

    settings: Settings
    engine: str
    now: int
    table: DeltaTable
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """The ledger and its progress row."""

    settings: Settings
    book: Ledger
    progress: Progress

    @property
    def table(self) -> DeltaTable:
        """Return the table."""
        return self.book.table


def batcher_depot(settings: Settings, engine: str, now: int) -> OpenDepot:
    """Open the depot of a batcher. Raises TableMissing."""
    table, progress = open_table(settings.depot, "depot"), None
    with suppress(WindrowError):
        progress = batcher_ledger(settings).progress
    return OpenDepot(settings, engine, now, table, progress)


def batcher_ledger(settings: Settings) -> OpenLedger:
    """Open the ledger of a batcher. Raises TableMissing, TableRefused, OtherDepot."""
    book = open_ledger(settings.ledger)
    progress = book.progress()
    try:
        open_depot(settings.depot, book, progress)
    except WindrowError as refused:
        if isinstance(refused, OtherDepot):
            raise  # any other error is a finding about the depot
    return OpenLedger(settings, book, progress)


def not_opened(role: str, location: str, refused: WindrowError) -> Finding:
    """Return why a table was not opened; a missing ledger is not an error, since the first run creates it."""
    missing = isinstance(refused, TableMissing)
    if missing and is_catalog_name(location):
        todo = f"`windrow init` or `windrow run` with Spark records it; or pass it: --{role} (see DESCRIBE DETAIL)."
        return warning(role, f"{location} is a catalog table, whose path is not known here", todo)
    if missing and role == "ledger":
        return warning(role, refused.message, "The first `windrow run` creates it, or `windrow init`.")
    return error(role, f"{refused.code}: {refused.message}", refused.hint)

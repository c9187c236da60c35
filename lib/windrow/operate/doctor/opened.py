"""The input for the checks of a table: the table, opened once, and what the ledger says about it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from windrow.delta.locations import is_catalog_name
from windrow.errors import DepotMismatchError, TableMissingError, WindrowError
from windrow.operate.doctor.finding import Finding, error, warning
from windrow.reading.tables import (
    DepotTable,
    Ledger,
    Progress,
    TableLog,
    depot_table,
    ledger_log,
    open_depot,
    open_ledger,
)
from windrow.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class OpenDepot:
    """The depot at wall time `now` (microseconds), and how far the ledger has read it; None without a ledger."""

    settings: Settings
    engine: str
    now: int
    table: DepotTable
    progress: Progress | None

    @property
    def version(self) -> int:
        """Return the version of the table."""
        return self.table.version()

    @property
    def next_version(self) -> int:
        """Return the version that the ledger reads next."""
        return 0 if self.progress is None else self.progress.depot_version + 1


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """The ledger and its progress row."""

    settings: Settings
    book: Ledger
    progress: Progress

    @property
    def table(self) -> TableLog:
        """Return the table, or its log as Spark knows it where Spark reads it."""
        return ledger_log(self.book)

    @property
    def version(self) -> int:
        """Return the version of the table."""
        return self.book.version


def batcher_depot(settings: Settings, engine: str, now: int) -> OpenDepot:
    """Open the depot of a batcher. Raises TableMissingError."""
    table, progress = depot_table(settings.depot), None
    with suppress(WindrowError):
        progress = batcher_ledger(settings).progress
    return OpenDepot(settings, engine, now, table, progress)


def batcher_ledger(settings: Settings) -> OpenLedger:
    """Open the ledger of a batcher. Raises TableMissingError, IncompatibleTableError, DepotMismatchError."""
    book = open_ledger(settings.ledger)
    progress = book.progress()
    try:
        open_depot(settings.depot, book, progress)
    except WindrowError as refused:
        if isinstance(refused, DepotMismatchError):
            raise  # any other error is a finding about the depot
    return OpenLedger(settings, book, progress)


def explain_unopened(role: str, location: str, refused: WindrowError) -> Finding:
    """Say why a table was not opened; a missing ledger is not an error, since the first run creates it."""
    missing = isinstance(refused, TableMissingError)
    if missing and is_catalog_name(location):
        hint = f"`windrow init` or `windrow run` with Spark records it; or pass it: --{role} (see DESCRIBE DETAIL)."
        return warning(role, f"{location} is a catalog table, whose path is not known here", hint)
    if missing and role == "ledger":
        return warning(role, refused.message, "The first `windrow run` creates it, or `windrow init`.")
    return error(role, f"{refused.code}: {refused.message}", refused.hint)

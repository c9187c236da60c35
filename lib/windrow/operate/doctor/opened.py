"""Open the tables for the checks, once; a table that is missing or cannot be opened is a finding."""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable

from windrow.delta.locations import is_catalog_name
from windrow.delta.table import open_table
from windrow.errors import TableMissing, WindrowError
from windrow.operate.doctor.finding import Finding, error, ok, warning
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


def open_tables(settings: Settings, engine: str, now: int) -> tuple[OpenDepot | None, OpenLedger | None, list[Finding]]:
    """Open depot and ledger; return None for a table that cannot be opened, and the findings."""
    table = ledger = None
    try:
        table = open_table(settings.depot, "depot")
        findings = [ok("depot", f"{settings.depot}, version {table.version()}")]
    except WindrowError as refused:
        findings = [not_opened("depot", settings.depot, refused)]
    try:
        book = open_ledger(settings.ledger)
        progress = book.progress()
        if table is not None:
            open_depot(settings.depot, book, progress)
        ledger = OpenLedger(settings, book, progress)
        state = f"version {book.version}, microbatch {progress.microbatch}, schema version {progress.schema_version}"
        findings.append(ok("ledger", f"{settings.ledger}, {state}"))
    except WindrowError as refused:
        findings.append(not_opened("ledger", settings.ledger, refused))
    depot = None if table is None else OpenDepot(settings, engine, now, table, ledger.progress if ledger else None)
    return depot, ledger, findings


def not_opened(role: str, location: str, refused: WindrowError) -> Finding:
    """Return why a table was not opened; a missing ledger is not an error, since the first run creates it."""
    missing = isinstance(refused, TableMissing)
    if missing and is_catalog_name(location):
        todo = f"`windrow init` or `windrow run` with Spark records it; or pass it: --{role} (see DESCRIBE DETAIL)."
        return warning(role, f"{location} is a catalog table, whose path is not known here", todo)
    if missing and role == "ledger":
        return warning(role, refused.message, "The first `windrow run` creates it, or `windrow init`.")
    return error(role, f"{refused.code}: {refused.message}", refused.hint)

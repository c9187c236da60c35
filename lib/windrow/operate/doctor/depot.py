"""Check the depot: its columns, its change feed, how far back it can be read, and whether rows were changed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windrow.delta.log import identity
from windrow.errors import DepotUnreadableError, WindrowError, first_line
from windrow.model.commits import CHANGE, FEED, VERSION
from windrow.model.messages import conform
from windrow.operate.doctor.finding import Finding, Level, error, ok, warning
from windrow.operate.doctor.opened import OpenDepot
from windrow.reading.log import earliest_readable, log_retention, waiting_versions
from windrow.reading.tables import DepotTable, changes_of
from windrow.source.conversion import Conversion

REMOVED = "delta.deletedFileRetentionDuration"


def check_columns(depot: OpenDepot) -> Iterator[Finding]:
    """Check that the depot has the columns of messages, or that format and mapping produce them from its own."""
    settings, table = depot.settings, depot.table
    try:
        conversion = Conversion.of(settings, identity(table) if isinstance(table, DeltaTable) else table.table)
        if conversion.mapping is None:
            conform(conversion.columns.empty_table(), conversion.payload)
    except WindrowError as refused:
        yield error("depot-columns", f"{refused.code}: {refused.message}", refused.hint)
        return
    try:
        conversion.require_embedded()
    except WindrowError as refused:
        message = f"without Spark the mapping does not run: {refused.message}"
        level: Level = "error" if depot.engine == "embedded" else "warning"
        yield Finding(level, "depot-columns", message, refused.hint or "verify and show need it too.")
        return
    if conversion.format is not None:
        yield ok("depot-columns", f"raw chunks of {settings.format.type}")
    elif settings.depot_columns:
        yield ok("depot-columns", f"mapped by [depot.columns]: {', '.join(settings.depot_columns)}")
    else:
        yield ok("depot-columns", "the columns of messages")


def check_feed(depot: OpenDepot) -> Iterator[Finding]:
    """Check whether the change feed is on; only Spark, when it reads tables by name, needs it."""
    if depot.table.metadata().configuration.get(FEED) == "true":
        yield ok("depot-feed", "the change data feed is on")
    elif isinstance(depot.table, DeltaTable) or not depot.table.needs_feed:
        yield ok("depot-feed", "the change data feed is off, so only versions that append rows can be read")
    else:
        hint = f"Run ALTER TABLE {depot.settings.depot} SET TBLPROPERTIES ({FEED} = true): later versions can be read."
        yield error("depot-feed", "the change data feed is off, and without it Spark cannot tell versions apart", hint)


def check_readable(depot: OpenDepot) -> Iterator[Finding]:
    """Check that the depot can be read from the next version that the ledger needs up to the latest."""
    first, latest, then = earliest_readable(depot.table, depot=True), depot.table.version(), depot.next_version
    again = f'A new ledger can read the rest: start_from = "version:{first}".'
    if depot.progress is None and depot.settings.start_from == "beginning" and first > 0:
        yield warning("depot-readable", f"only depot versions {first} to {latest} can be read", again)
        return
    last = latest if isinstance(depot.table, DeltaTable) else first - 1  # Spark would read all rows
    failed = _failure(depot.table, first if depot.progress is None else then, last)
    if failed and then < first:
        message = f"depot version {then} comes next, but only versions from {first} on can be read"
        yield error("depot-readable", message, f"The versions in between are lost. {again}")
    elif failed:
        message = f"delta-rs cannot read all unread versions up to {latest}: {failed}"
        hint = "Restore what is missing; a table feature that delta-rs does not know needs DROP FEATURE, or Spark."
        yield (warning if depot.engine == "spark" else error)("depot-readable", message, hint)
    else:
        read = f"the ledger has read up to {then - 1}" if then else "the ledger has read nothing yet"
        yield ok("depot-readable", f"depot versions {first} to {latest} can be read; {read}")


def _failure(table: DepotTable, first: int, last: int) -> str | None:
    """Return why the changes in versions cannot be read; they may exist although a version cannot be opened."""
    try:
        if first <= last:
            for _ in changes_of(table, first, last, [CHANGE, VERSION]):
                pass
    except (DepotUnreadableError, DeltaError, pa.ArrowException, OSError) as failed:
        return first_line(failed)
    return None


def check_retention(depot: OpenDepot) -> Iterator[Finding]:
    """Check the retention: messages not read before the clean-up are lost to the ledger."""
    log = log_retention(depot.table)
    if log is not None and REMOVED in depot.table.metadata().configuration:
        yield ok("depot-retention", f"log and removed files are kept for {log}")
    else:
        message = (
            "the depot does not say how long it keeps its log and removed files: Delta's defaults are 30 and 7 days"
        )
        properties = f"delta.logRetentionDuration and {REMOVED}, both at least retention ({depot.settings.retention})"
        yield warning("depot-retention", message, f"ALTER TABLE ... SET TBLPROPERTIES: {properties}.")


def check_changes(depot: OpenDepot) -> Iterator[Finding]:
    """Check the log for unread versions that deleted or updated rows, which stop the next run or are ignored."""
    if depot.progress is None:
        return
    changed = waiting_versions(depot.table, depot.next_version - 1).changed
    message = f"rows were deleted or updated in unread versions, first in depot version {changed}"
    if changed is None:
        yield ok("depot-changes", "no row was deleted or updated in unread versions")
    elif depot.settings.on_depot_change == "ignore":
        yield ok("depot-changes", f'{message}; on_depot_change = "ignore" skips them')
    else:
        hint = 'The next run stops there. If a retention job does this: on_depot_change = "ignore".'
        yield error("depot-changes", message, hint)

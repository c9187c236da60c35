"""Check the depot: its columns, its change feed, how far back it can be read, and whether rows were changed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windrow.columnar.arrow import plain_type
from windrow.delta.log import Table, identity
from windrow.errors import DepotUnreadable, WindrowError, first_line
from windrow.model.commits import CHANGE, FEED, VERSION
from windrow.model.messages import COLUMNS, COMPARED, DEFAULTS, TIMES
from windrow.operate.doctor.finding import Finding, Level, error, ok, warning
from windrow.operate.doctor.opened import OpenDepot
from windrow.reading.log import earliest_readable, kept, waiting_versions
from windrow.reading.tables import DepotTable, changes_of
from windrow.source.conversion import Conversion

REMOVED = "delta.deletedFileRetentionDuration"
CHANGED = 'The next run stops there. If a retention job does this: on_depot_delete = "ignore".'
READ_ERRORS = (DepotUnreadable, DeltaError, pa.ArrowException, OSError)


def check_columns(depot: OpenDepot) -> Iterator[Finding]:
    """Check that the depot has the columns of messages (some are optional), or that format and mapping make them."""
    settings, table = depot.settings, _identity(depot.table)
    if not (table.raw or settings.depot_columns) and (unfit := _unfit(table.schema)):
        yield unfit
        return
    try:
        conversion = Conversion.of(settings, table)
    except WindrowError as refused:
        yield error("depot-columns", f"{refused.code}: {refused.message}", refused.hint)
        return
    try:
        conversion.require_embedded()
    except WindrowError as refused:
        what = f"without Spark the mapping does not run: {refused.message}"
        level: Level = "error" if depot.engine == "embedded" else "warning"
        yield Finding(level, "depot-columns", what, refused.hint or "verify and show need it too.")
        return
    if conversion.format is not None:
        columns = f"raw chunks of {settings.format.type}"
    elif settings.depot_columns:
        columns = f"mapped by [depot.columns]: {', '.join(settings.depot_columns)}"
    elif conversion.mapping is not None:
        columns = "the columns of messages, in another case"
    else:
        absent = [name for name in DEFAULTS if name not in table.schema.names]
        columns = "the columns of messages" + (f", without {', '.join(absent)}" if absent else "")
    yield ok("depot-columns", columns)


def _identity(table: DepotTable) -> Table:
    return identity(table) if isinstance(table, DeltaTable) else table.table


def _unfit(columns: pa.Schema) -> Finding | None:
    """Return which columns of a message are missing or have another type; those in another case are cast."""
    own = {field.name: field.type for field in columns if field.name.lower() in COLUMNS}
    lower = {name.lower() for name in own}
    if missing := [name for name in COLUMNS if name not in DEFAULTS and name not in lower]:
        todo = "Map its columns under [depot.columns] in windrow.toml."
        return error("depot-columns", f"the depot has no column {', '.join(missing)}", todo)
    wrong = [name for name in COMPARED if name in own and plain_type(own[name]) != pa.string()]
    wrong += [name for name in TIMES if name in own and not pa.types.is_timestamp(own[name])]
    if not wrong or own.keys() - COLUMNS.keys():
        return None
    types = ", ".join(f"{name} is {own[name]}" for name in wrong)
    return error("depot-columns", types, "Cast names to strings and times to timestamps in [depot.columns].")


def check_nulls(depot: OpenDepot) -> Iterator[Finding]:
    """Count NULLs in required columns, which make messages invalid, by the files' statistics."""
    if not isinstance(depot.table, DeltaTable):
        return
    files = pa.table(depot.table.get_add_actions(flatten=True))
    required = [name for name in COLUMNS if name not in DEFAULTS or name == "source"]
    counts = {name: f"null_count.{name}" for name in required if name not in depot.settings.depot_columns}
    empty = {name: pc.sum(files[count]).as_py() or 0 for name, count in counts.items() if count in files.column_names}
    found = {name: number for name, number in empty.items() if number}
    if found:
        counted = ", ".join(f"{number:,} without {name}" for name, number in found.items())
        todo = "They are rejected as invalid. Fill the column in the writer or in the mapping."
        yield warning("depot-nulls", f"messages {counted}", todo)


def check_feed(depot: OpenDepot) -> Iterator[Finding]:
    """Check whether the change feed is on, and that the depot can be read back to the next version to read."""
    if depot.table.metadata().configuration.get(FEED) == "true":
        yield ok("depot-feed", "the change data feed is on")
    elif isinstance(depot.table, DeltaTable) or not depot.table.needs_feed:
        yield ok("depot-feed", "the change data feed is off, so only versions that append rows can be read")
    else:
        todo = f"Run ALTER TABLE {depot.settings.depot} SET TBLPROPERTIES ({FEED} = true): later versions can be read."
        yield error("depot-feed", "the change data feed is off, and without it Spark cannot tell versions apart", todo)
    first, latest, then = earliest_readable(depot.table, depot=True), depot.table.version(), _next_version(depot)
    again = f'start_from = "version:{first}".'
    if depot.progress is None:
        what = f"depot versions {first} to {latest} can be read"
        is_late = depot.settings.start_from == "beginning" and first > 0
        yield warning("depot-reach", what, f"A new ledger needs {again}") if is_late else ok("depot-reach", what)
    elif then < first and not _in_feed(depot.table, then, first - 1):
        what = f"depot version {then} comes next, but only versions from {first} on can be read"
        todo = f"The versions in between are lost. A new ledger can read the rest: {again}"
        yield error("depot-reach", what, todo)
    else:
        read = f"the ledger has read up to {then - 1}" if then else "the ledger has read nothing yet"
        gone = f"depot versions before {first} can no longer be read; {read}"
        todo = "Runs are not affected; verify and replay begin there. A longer retention keeps more."
        whole = ok("depot-reach", f"every version can be read, up to {latest}; {read}")
        yield warning("depot-reach", gone, todo) if first else whole


def _next_version(depot: OpenDepot) -> int:
    return 0 if depot.progress is None else depot.progress.depot_version + 1


def check_retention(depot: OpenDepot) -> Iterator[Finding]:
    """Check the retention: what is not read before the clean-up is lost to the ledger."""
    log = kept(depot.table)
    if log is not None and REMOVED in depot.table.metadata().configuration:
        yield ok("depot-retention", f"log and removed files are kept for {log}")
    else:
        what = "the depot does not say how long it keeps its log and removed files: Delta's defaults are 30 and 7 days"
        properties = f"delta.logRetentionDuration and {REMOVED}, both as long as keep says ({depot.settings.keep})"
        yield warning("depot-retention", what, f"ALTER TABLE ... SET TBLPROPERTIES: {properties}.")


def check_changes(depot: OpenDepot) -> Iterator[Finding]:
    """Check unread versions for deleted or updated rows, which stop the next run or are ignored."""
    if not isinstance(depot.table, DeltaTable):
        yield _changed_by_log(depot)
        return
    earliest, latest = earliest_readable(depot.table, depot=True), depot.table.version()
    first = earliest if depot.progress is None else _next_version(depot)
    if first > latest or (first < earliest and not _in_feed(depot.table, first, first)):  # as `check_feed` says
        return
    try:
        rows = changes_of(depot.table, first, columns=[CHANGE, VERSION]).read_all()
    except READ_ERRORS as failed:
        what = f"the changes of versions {first} to {latest} cannot all be read: {first_line(failed)}"
        todo = "The next run stops there. Bring back what is missing; or was the change data feed off for some of them?"
        yield error("depot-changes", what, todo)
        return
    versions = rows[VERSION].filter(pc.not_equal(rows[CHANGE].cast(pa.string()), "insert"))
    where = f"first in depot version {pc.min(versions).as_py()}"
    what = f"{len(versions):,} rows were deleted or updated in unread versions, {where}"
    if not len(versions):
        yield ok("depot-changes", "no row was deleted or updated in unread versions")
    elif depot.settings.on_depot_delete == "ignore":
        yield ok("depot-changes", f'{what}; on_depot_delete = "ignore" skips them')
    else:
        yield error("depot-changes", what, CHANGED)


def _changed_by_log(depot: OpenDepot) -> Finding:
    """Check what the log, which Spark reads, says of them."""
    changed = waiting_versions(depot.table, _next_version(depot) - 1).changed
    if changed is None:
        return ok("depot-changes", "no row was deleted or updated in unread versions")
    what = f"rows were deleted or updated in unread versions, first in depot version {changed}"
    if depot.settings.on_depot_delete == "ignore":
        return ok("depot-changes", f'{what}; on_depot_delete = "ignore" skips them')
    return error("depot-changes", what, CHANGED)


def _in_feed(table: DepotTable, first: int, last: int) -> bool:
    """Whether the changes of versions can be read, even if the versions themselves can no longer be opened."""
    try:
        changes_of(table, first, last, [CHANGE, VERSION]).read_all()
    except READ_ERRORS:
        return False
    return True

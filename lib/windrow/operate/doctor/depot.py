"""The depot: its columns, its change feed, how far back it can be read, and whether somebody changed rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windrow.columnar.arrow import plain
from windrow.delta.log import identity
from windrow.engine.conversion import Conversion
from windrow.errors import WindrowError, first_line
from windrow.expressions import DEPOT, Mapping
from windrow.model.chunks import is_raw
from windrow.model.commits import CHANGE, FEED, VERSION
from windrow.model.messages import COLUMNS, DEFAULTS
from windrow.operate.doctor.finding import Finding, Level, error, ok, warning
from windrow.operate.doctor.opened import OpenDepot
from windrow.reading.log import earliest_readable, kept

REMOVED = "delta.deletedFileRetentionDuration"
MENDED = "ALTER TABLE ... SET TBLPROPERTIES"


def check_columns(depot: OpenDepot) -> Iterator[Finding]:
    """A depot has the columns of a message, `source`, `sequence` and `payload` perhaps, or a mapping makes them."""
    fields = {field.name: field for field in pa.schema(depot.table.schema().to_arrow())}
    if is_raw(pa.schema(list(fields.values()))):
        yield _raw(depot)
        return
    lower = {name.lower() for name in fields}
    missing = [name for name in COLUMNS if name not in DEFAULTS and name not in lower]
    exact = all(name in COLUMNS for name in fields if name.lower() in COLUMNS)
    if depot.settings.depot_columns or not (missing or exact):
        yield from _mapped(depot, list(fields))
        return
    if missing:
        todo = "Map its columns under [depot.columns] in windrow.toml."
        yield error("depot-columns", f"the depot has no column {', '.join(missing)}", todo)
        return
    text = ("source", "key", "type")
    wrong = [name for name in text if name in fields and not _is_text(fields[name].type)]
    wrong += [name for name in ("event_time", "received_at") if not pa.types.is_timestamp(fields[name].type)]
    if wrong:
        types = ", ".join(f"{name} is {fields[name].type}" for name in wrong)
        yield error("depot-columns", types, "Names are strings, times are timestamps: cast them in [depot.columns].")
        return
    absent = [name for name in DEFAULTS if name not in fields]
    yield ok("depot-columns", "those of messages" + (f", without {', '.join(absent)}" if absent else ""))


def _raw(depot: OpenDepot) -> Finding:
    """A raw depot needs a format, and a mapping of its fields that the engine can run."""
    try:
        conversion = Conversion.of(depot.settings, identity(depot.table))
        if depot.engine == "embedded":
            conversion.require_embedded()
    except WindrowError as refused:
        return error("depot-columns", f"{refused.code}: {refused.message}", refused.hint)
    return ok("depot-columns", f"raw chunks of {depot.settings.format.type}")


def _mapped(depot: OpenDepot, names: list[str]) -> Iterator[Finding]:
    """The mapping must fit the depot's columns; without Spark it must be translated too."""
    columns = depot.settings.depot_columns
    schema = plain(pa.schema(depot.table.schema().to_arrow()).empty_table()).schema
    try:
        mapping = Mapping.of(columns, names, section=DEPOT)
    except WindrowError as refused:
        yield error("depot-columns", f"{refused.code}: {refused.message}", refused.hint)
        return
    try:
        mapping.duckdb_select(schema, mapping.payload_type(schema))
    except WindrowError as refused:
        what = f"without Spark the mapping does not run: {refused.message}"
        level: Level = "error" if depot.engine == "embedded" else "warning"
        yield Finding(level, "depot-columns", what, refused.hint or "verify and show need it too.")
        return
    by = f"mapped by [depot.columns]: {', '.join(columns)}"
    yield ok("depot-columns", by if columns else "those of messages, names in another case")


def check_nulls(depot: OpenDepot) -> Iterator[Finding]:
    """A NULL in a required column makes a message invalid; the files' statistics count them."""
    files = pa.table(depot.table.get_add_actions(flatten=True))
    required = [name for name in COLUMNS if name not in DEFAULTS or name == "source"]
    counts = {name: f"null_count.{name}" for name in required if name not in depot.settings.depot_columns}
    empty = {name: pc.sum(files[count]).as_py() or 0 for name, count in counts.items() if count in files.column_names}
    found = {name: number for name, number in empty.items() if number}
    if found:
        said = ", ".join(f"{number:,} without {name}" for name, number in found.items())
        todo = "They are rejected as invalid. Whoever writes the depot must fill it, or the mapping of its columns."
        yield warning("depot-nulls", f"messages {said}", todo)


def check_feed(depot: OpenDepot) -> Iterator[Finding]:
    """The change feed is what is read: it must be on, and reach back to the next version to read."""
    if depot.table.metadata().configuration.get(FEED) != "true":
        todo = f"{MENDED} ({FEED} = true); versions from before cannot be read, start_from says where to begin."
        yield error("depot-feed", "the depot's change data feed is off", todo)
        return
    yield ok("depot-feed", "the change data feed is on")
    first, latest = earliest_readable(depot.table, depot=True), depot.table.version()
    if depot.progress is None:
        behind = depot.settings.start_from == "beginning" and first > 0
        what = f"depot versions {first} to {latest} can be read"
        todo = f'A new ledger cannot begin at 0: start_from = "version:{first}".'
        yield warning("depot-reach", what, todo) if behind else ok("depot-reach", what)
        return
    reached = depot.progress.depot_version
    if reached + 1 < first and not _in_feed(depot.table, reached + 1, first - 1):
        yield error(
            "depot-reach",
            f"depot version {reached + 1} must be read next, all can be read from {first} on",
            f'What is between is gone. What is left can go into a new ledger: start_from = "version:{first}".',
        )
    elif first:
        yield warning(
            "depot-reach",
            f"depot versions before {first} can no longer be read; the ledger has read up to {reached}",
            "run is not harmed; verify and replay begin there. A longer retention keeps more.",
        )
    else:
        yield ok("depot-reach", f"every version can be read, up to {latest}; the ledger has read up to {reached}")


def check_retention(depot: OpenDepot) -> Iterator[Finding]:
    """What is not read before log and removed files are cleaned up is lost to the ledger."""
    log, keep = kept(depot.table), depot.settings.keep
    if log is not None and REMOVED in depot.table.metadata().configuration:
        yield ok("depot-retention", f"log and removed files are kept for {log}")
        return
    yield warning(
        "depot-retention",
        "the depot does not say how long it keeps its log and removed files: Delta's defaults are 30 and 7 days",
        f"{MENDED}: delta.logRetentionDuration and {REMOVED}, both as long as keep says ({keep}).",
    )


def check_changes(depot: OpenDepot) -> Iterator[Finding]:
    """Rows deleted or updated in versions that were not read yet stop the next run, or are passed over."""
    first = earliest_readable(depot.table, depot=True) if depot.progress is None else depot.progress.depot_version + 1
    if first > depot.table.version() or not _in_feed(depot.table, first, first):
        return
    other = "_change_type <> 'insert'"
    stream = depot.table.load_cdf(starting_version=first, columns=[CHANGE, VERSION], predicate=other)
    try:
        versions = pa.RecordBatchReader.from_stream(stream).read_all()[VERSION]
    except (DeltaError, pa.ArrowException, OSError) as failed:
        what = f"the changes of versions {first} to {depot.table.version()} cannot all be read: {first_line(failed)}"
        yield error("depot-changes", what, "Was the change data feed off for some of them? The next run stops there.")
        return
    if not len(versions):
        yield ok("depot-changes", "no row was deleted or updated in the versions that wait")
        return
    where = f"depot version {pc.min(versions).as_py()}"
    what = f"{len(versions):,} rows are deleted or updated in versions that wait, first in {where}"
    if depot.settings.on_depot_delete == "ignore":
        yield ok("depot-changes", f'{what}; on_depot_delete = "ignore" passes them over')
    else:
        todo = 'The next run stops there. If a retention job does this: on_depot_delete = "ignore".'
        yield error("depot-changes", what, todo)


def _in_feed(table: DeltaTable, first: int, last: int) -> bool:
    """Tell whether the changes of versions can be read, also where a version itself cannot be opened any more."""
    try:
        stream = table.load_cdf(starting_version=first, ending_version=last, columns=[CHANGE, VERSION])
        pa.RecordBatchReader.from_stream(stream).read_all()
    except (DeltaError, pa.ArrowException, OSError):
        return False
    return True


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)

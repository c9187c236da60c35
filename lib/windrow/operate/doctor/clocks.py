"""Check clocks: this machine's clock against commits and stamps, and the clocks of the sources."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.delta.table import history
from windrow.model.durations import UNITS, text
from windrow.model.timestamps import time_text
from windrow.operate.doctor.finding import Finding, ok, warning
from windrow.operate.doctor.opened import OpenDepot, OpenLedger
from windrow.reading.tables import TableLog

TOLERANCE_US = 5 * UNITS["s"]  # a guess: clocks that NTP sets are nearer
SILENT_US = UNITS["h"]  # a guess: longer than most pauses of a device
MAX_NAMES = 5
STAMPS = "max.received_at"


def check_commits(role: str, table: TableLog, version: int, now: int) -> Iterator[Finding]:
    """Check that the last commit is not in the future, which means that this clock or the writer's is wrong."""
    commits = history(table, version) if isinstance(table, DeltaTable) else table.history(version)
    stamp = next(iter(commits)).get("timestamp")
    ahead = 0 if stamp is None else int(stamp) * 1_000 - now
    if ahead <= TOLERANCE_US:
        yield ok("clock-commits", f"the wall clock, {time_text(now)}, is not behind the latest commit of the {role}")
        return
    what = f"the latest commit of the {role} is {_seconds(ahead)} in the future by this machine's clock"
    todo = "Set the clock (NTP) here or on the writer: idle sources and clock_ahead depend on the wall clock."
    yield warning("clock-commits", what, todo)


def check_stamps(depot: OpenDepot) -> Iterator[Finding]:
    """Check for stamps that are ahead of the wall clock by more than `max_clock_skew`, which are rejected."""
    if not isinstance(depot.table, DeltaTable):
        return
    files = pa.table(depot.table.get_add_actions(flatten=True))
    mapped = "received_at" in depot.settings.depot_columns
    if mapped or STAMPS not in files.column_names or not pa.types.is_timestamp(files[STAMPS].type):
        return
    latest = pc.max(files[STAMPS].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())).as_py()
    if latest is not None and latest - depot.now > depot.settings.max_clock_skew:
        what = f"the depot has messages stamped up to {_seconds(latest - depot.now)} ahead of the wall clock"
        todo = "They are rejected as clock_ahead if they are read before then. Set the clock of the writer."
        yield warning("clock-stamps", what, todo)
    elif latest is not None:
        yield ok("clock-stamps", f"the latest received_at is {time_text(latest)}")


def check_still(ledger: OpenLedger) -> Iterator[Finding]:
    """Check for silent sources: their clocks stand still, and without idle ticks their last batches stay open."""
    rows = ledger.book.rows(
        "progress",
        "source, max(epoch_us(seen_at)) OVER () - epoch_us(seen_at) AS silent",
        "source IS NOT NULL",
        "ORDER BY silent DESC, source",
        then=f"silent > {SILENT_US}",
    )
    if not rows.num_rows:
        return
    names = ", ".join(map(repr, rows["source"].slice(0, MAX_NAMES).to_pylist()))
    more = f" and {rows.num_rows - MAX_NAMES:,} more" if rows.num_rows > MAX_NAMES else ""
    stay = "; their last batches stay open (idle_timeout is never)" if ledger.settings.idle_timeout is None else ""
    longest = _seconds(rows["silent"][0].as_py())
    silent = "sources that have been silent for more than an hour while others send, the longest for"
    todo = "Check whether they should send; a source that is gone for good does no harm."
    yield warning("clock-still", f"{silent} {longest}: {names}{more}{stay}", todo)


def _seconds(microseconds: int) -> str:
    return text(max(microseconds // UNITS["s"], 1) * UNITS["s"])

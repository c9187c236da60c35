"""Check clocks: this machine's clock against commits and stamps, and the clocks of the sources."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.delta.table import history
from windrow.model import durations
from windrow.model.timestamps import time_text
from windrow.operate.doctor.finding import Finding, ok, warning
from windrow.operate.doctor.opened import OpenDepot, OpenLedger

TOLERANCE = 5_000_000
SILENT = 3_600_000_000
SECOND, NAMED = 1_000_000, 5


def check_commits(role: str, table: DeltaTable, now: int) -> Iterator[Finding]:
    """Check that no commit is in the future, which means that this clock or the writer's is wrong."""
    stamp = next(history(table, table.version())).get("timestamp")
    ahead = 0 if stamp is None else int(stamp) * 1_000 - now
    if ahead <= TOLERANCE:
        yield ok("clock-commits", f"the wall clock, {time_text(now)}, is not behind the latest commit of the {role}")
        return
    yield warning(
        "clock-commits",
        f"the latest commit of the {role} is {_text(ahead)} in the future by this machine's clock",
        "Set the clock (NTP) here or on the writer: idle sources and clock_ahead depend on the wall clock.",
    )


def check_stamps(depot: OpenDepot) -> Iterator[Finding]:
    """Check for stamps that are ahead of the wall clock by more than `max_clock_skew`, which are rejected."""
    files = pa.table(depot.table.get_add_actions(flatten=True))
    mapped = "received_at" in depot.settings.depot_columns
    if (
        mapped
        or "max.received_at" not in files.column_names
        or not pa.types.is_timestamp(files["max.received_at"].type)
    ):
        return
    latest = pc.max(files["max.received_at"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())).as_py()
    if latest is None:
        return
    ahead = latest - depot.now
    if ahead <= depot.settings.max_clock_skew:
        yield ok("clock-stamps", f"the latest received_at is {time_text(latest)}")
        return
    yield warning(
        "clock-stamps",
        f"the depot has messages stamped up to {_text(ahead)} ahead of the wall clock",
        "They are rejected as clock_ahead if they are read before then. Set the clock of the writer.",
    )


def check_still(ledger: OpenLedger) -> Iterator[Finding]:
    """Check for silent sources: their clocks stand still, and without idle ticks their last batches stay open."""
    latest = "max(epoch_us(seen_at)) OVER ()"
    rows = ledger.book.rows(
        "progress",
        f"source, {latest} - epoch_us(seen_at) AS silent",
        "source IS NOT NULL",
        "ORDER BY silent DESC, source",
        then=f"silent > {SILENT}",
    )
    if not rows.num_rows:
        return
    names = ", ".join(repr(name) for name in rows["source"].slice(0, NAMED).to_pylist())
    more = f" and {rows.num_rows - NAMED:,} more" if rows.num_rows > NAMED else ""
    stay = "; their last batches stay open (idle_timeout is never)" if ledger.settings.idle_timeout is None else ""
    longest = _text(rows["silent"][0].as_py())
    yield warning(
        "clock-still",
        f"sources that have been silent for more than an hour while others send, the longest for {longest}: "
        f"{names}{more}{stay}",
        "Check whether they should send; a source that is gone for good does no harm.",
    )


def _text(microseconds: int) -> str:
    return durations.text(max(microseconds // SECOND, 1) * SECOND)

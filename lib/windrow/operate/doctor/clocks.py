"""Check this machine's clock against the commits of the tables and the stamps of the messages."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.delta.table import history
from windrow.model.durations import UNITS, format_duration
from windrow.model.timestamps import time_text
from windrow.operate.doctor.finding import Finding, ok, warning
from windrow.operate.doctor.opened import OpenDepot
from windrow.reading.tables import TableLog

TOLERANCE_US = 5 * UNITS["s"]  # a guess: clocks that NTP sets are nearer
STAMPS = "max.received_at"


def check_commits(role: str, table: TableLog, version: int, now: int) -> Iterator[Finding]:
    """Check that the last commit is not in the future, which means that this clock or the writer's is wrong."""
    commits = history(table, version) if isinstance(table, DeltaTable) else table.history(version)
    stamp = next(iter(commits)).get("timestamp")
    ahead = 0 if stamp is None else int(stamp) * 1_000 - now
    if ahead <= TOLERANCE_US:
        yield ok("clock-commits", f"the wall clock, {time_text(now)}, is not behind the latest commit of the {role}")
        return
    message = f"the latest commit of the {role} is {_seconds(ahead)} in the future by this machine's clock"
    hint = "Set the clock (NTP) here or on the writer: idle sources and clock_ahead depend on the wall clock."
    yield warning("clock-commits", message, hint)


def check_stamps(depot: OpenDepot) -> Iterator[Finding]:
    """Check for stamps that are ahead of the wall clock by more than `max_clock_skew`, which are rejected."""
    if not isinstance(depot.table, DeltaTable) or "received_at" in depot.settings.depot_columns:
        return
    files = pa.table(depot.table.get_add_actions(flatten=True))
    if STAMPS not in files.column_names or not pa.types.is_timestamp(files[STAMPS].type):
        return
    latest = pc.max(files[STAMPS].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())).as_py()
    if latest is not None and latest - depot.now > depot.settings.max_clock_skew:
        message = f"the depot has messages stamped up to {_seconds(latest - depot.now)} ahead of the wall clock"
        hint = "They are rejected as clock_ahead if they are read before then. Set the clock of the writer."
        yield warning("clock-stamps", message, hint)


def _seconds(microseconds: int) -> str:
    return format_duration(microseconds // UNITS["s"] * UNITS["s"])

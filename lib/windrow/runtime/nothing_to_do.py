"""Find out whether a run has anything to do before a JVM is started for it.

Most scheduled runs find nothing new, and starting a JVM takes far longer than finding that out. Tables on a local disk
can be read without one.
"""

from __future__ import annotations

import sys

from windrow.delta.locations import absolute, local_path
from windrow.delta.log import DeltaRsLog, added
from windrow.delta.table import beyond_files, latest_table
from windrow.engine import choose, from_platform, require_spark
from windrow.engine.embedded.engine import EmbeddedEngine
from windrow.runtime.algorithm import Algorithm
from windrow.runtime.opening import require_depot
from windrow.runtime.progress import prime
from windrow.runtime.runner import Summary
from windrow.settings.settings import Settings


def idle_run(settings: Settings, algorithm: Algorithm, now: int) -> Summary | None:
    """Return the summary of a run that has nothing to do at wall time `now` (microseconds).

    Returns None if there is work, or if only the engine can tell. Raises the errors of opening engine and ledger.
    """
    if not _may_look(settings):
        return None
    require_spark()  # fail now if Spark cannot run, not when the first message arrives
    depot, ledger = absolute(settings.depot), absolute(settings.ledger)
    engine = EmbeddedEngine(settings.model_copy(update={"depot": depot, "ledger": ledger}))
    engine.mend()
    if engine.ledger() is None or beyond_files(latest_table(ledger, "ledger")):
        return None
    state = prime(engine)
    found = require_depot(engine, state.reached, settings)
    algorithm.require(state, found)
    if state.paused:
        return Summary("spark", paused=True)
    begins_elsewhere = "start_from" in settings.model_fields_set and settings.start_from != state.start_from
    if begins_elsewhere or state.rules != algorithm.settings:
        return None
    new = added(DeltaRsLog(depot).commits(state.depot_version), state.depot_version, found.version)
    is_due = settings.idle_timeout is not None and algorithm.due(state, now) is not None
    return None if is_due or set(new.values()) - {0} else Summary("spark")


def _may_look(settings: Settings) -> bool:
    """Tell whether a Spark session would have to be started for tables that are on a local disk."""
    local = all(local_path(table) is not None for table in (settings.depot, settings.ledger))
    return local and choose(settings.engine) == "spark" and not from_platform() and not _session_runs()


def _session_runs() -> bool:
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and sql.SparkSession.getActiveSession() is not None

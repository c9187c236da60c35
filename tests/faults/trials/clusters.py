"""Faults of a Spark cluster: an executor, or a worker with its executor, is killed at a random moment."""

from __future__ import annotations

import time
from contextlib import closing

from deltalake import DeltaTable

from tests.engine.cluster import Applications, Cluster, running
from tests.faults.trials.trial import Counted, Trial

LEDGERS = 12  # of a cluster, whose start takes as long as several of them, measured
SECONDS_A_RUN = 6  # of one of them on two cores, measured


def executors_killed(trial: Trial) -> None:
    """Let the application of a cluster run ledgers in turn, and kill an executor during each run."""
    trials = [Trial(trial.folder / str(n), trial.random.randrange(2**32), trial.factory) for n in range(LEDGERS)]
    folder = trial.folder / "cluster"
    folder.mkdir()
    with running(folder) as cluster, closing(Applications(cluster)) as application:
        for ledger_trial in trials:
            _executor_killed(ledger_trial, cluster, application)
    trial.result = Counted.sum(ledger_trial.counted() for ledger_trial in trials)


def _executor_killed(trial: Trial, cluster: Cluster, application: Applications) -> None:
    trial.publish()
    cluster.fill(2)
    path = trial.random.choice(["executors", "files"])
    application.run(trial.world, path, max_messages=trial.random.choice([30, 1_000]), **trial.folds)
    time.sleep(trial.random.uniform(0, SECONDS_A_RUN))
    kill = trial.random.choice([cluster.kill_executor, cluster.kill_worker])
    before = _version(trial.world.ledger)
    kill(trial.random.choice(cluster.workers))
    application.hear("done")
    trial.struck = _version(trial.world.ledger) > before


def _version(table: str) -> int:
    return DeltaTable(table).version() if DeltaTable.is_deltatable(table) else -1

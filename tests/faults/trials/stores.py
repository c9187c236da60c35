"""Faults of an object store: requests that are delayed, throttled, lost before and after they were applied, and so on.

The store is an S3 server behind a proxy that fails (`tests/stores/failing.py`). What reads and counts afterwards asks
the same proxy, which is calm then.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.clocks import ManualClock
from tests.faults.trials.processes import Child, children, drive, values_of
from tests.faults.trials.trial import Trial
from tests.stores.bucket import Bucket
from tests.stores.failing import FailingStore
from tests.stores.seaweed import BUCKET, SeaweedFS, variables
from tests.stores.spark_driver import SparkDriver
from windrow.errors import WindrowError

MAX_RUNS = 30  # of a job that is started again and again; each time the store fails as often
SHARES = (0.02, 0.1, 0.3)  # of the requests


@cache
def store() -> FailingStore:
    """Start the server and the proxy of this process, which end with it; both engines find them by the environment."""
    stack = ExitStack()
    atexit.register(stack.close)
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windrow-")))
    failing = stack.enter_context(FailingStore(stack.enter_context(SeaweedFS(directory)).port))
    os.environ.update(variables(failing.port))
    return failing


def failing(trial: Trial) -> None:
    """Let a job run again and again, until it comes to the end of the depot while the store fails."""
    failing_store = _move(trial)
    trial.publish()
    failing_store.fail(trial.random.randrange(2**32), trial.random.choice(SHARES))
    try:
        _run(trial)
    finally:
        trial.struck = any(failing_store.heal().values())


def raced(trial: Trial) -> None:
    """Let two drivers race while the store fails."""
    failing_store = _move(trial)
    trial.publish()
    values = values_of(trial) | {"max_retries": 10}
    with children(*(Child(drive_there, variables(failing_store.port), values) for _ in range(2))) as drivers:
        failing_store.fail(trial.random.randrange(2**32), trial.random.choice(SHARES))
        try:
            for driver in drivers:
                driver.go()
            ends = [driver.status() for driver in drivers]  # whoever fails too often ends with an error, as a job would
        finally:
            struck = failing_store.heal()
    trial.struck = any(struck.values()) and 0 in ends


def drive_there(pipe: Connection, environment: dict[str, str], values: dict[str, Any]) -> None:
    """Be a driver of tables in the store, which this process was not forked to know."""
    os.environ.update(environment)
    drive(pipe, values, None)


def _run(trial: Trial) -> None:
    """Run, and again after a failure."""
    for _ in range(MAX_RUNS):
        if trial.factory.name == "spark":
            if isinstance(spark_driver().do(trial.world, "run", **trial.settings), int):
                return
            continue
        with suppress(WindrowError):
            trial.run()
            return
    raise RuntimeError(f"the end of the depot was not reached in {MAX_RUNS} runs")


@cache
def spark_driver() -> SparkDriver:
    """Start the driver on Spark of this process, whose session has what S3 needs."""
    started = SparkDriver(variables(store().port))
    atexit.register(started.close)
    if started.answer() != "ready":
        raise RuntimeError("the driver on Spark is not ready")
    return started


def _move(trial: Trial) -> FailingStore:
    """Put the tables of a trial into the store."""
    failing_store = store()
    trial.world = Bucket(f"s3a://{BUCKET}/{uuid4().hex}", ManualClock())
    return failing_store

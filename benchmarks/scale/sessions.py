"""Sessions as a scenario needs them: what has to be said before the JVM starts is said in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from tests.engine.cluster import DAEMON
from windrow.engine.spark.session import local_session


def session(master: str, memory: str = "", configuration: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session on a master; `memory` is that of the driver's JVM, of which local sessions have more."""
    words = ["--driver-memory", memory] if memory else []
    for name, value in (configuration or {}).items():
        words += ["--conf", f"{name}={value}"]
    os.environ.update(DAEMON | {"PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"])})
    return local_session("windrow-scale", master=master)

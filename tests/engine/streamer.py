"""A stream of files through `windrow.foreach_batch` in a process of its own, to be killed: `streamer.py '{...}'`.

It says "committed" after each microbatch, and "done" when all files are read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import windrow
from tests.engine.driver import say
from windrow.settings.settings import Settings

SCHEMA = (
    "source STRING, key STRING, type STRING, event_time TIMESTAMP, received_at TIMESTAMP, sequence BIGINT, "
    "payload STRING"
)


def pass_files(
    session: SparkSession, files: str, checkpoint: str, at_once: int, function: Callable[[DataFrame, int], None]
) -> None:
    """Pass all files of a directory that are new to a function, so many at once."""
    frames = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", at_once).parquet(files)
    writer = frames.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def main(order: dict[str, Any]) -> None:
    """Carry out one order."""
    from windrow.engine.spark.session import local_session

    arguments = [order.pop(name) for name in ("files", "checkpoint", "at_once")]
    session = local_session("windrow-streamer", master="local[1]")
    pass_files(session, *arguments, windrow.foreach_batch(Settings(**order), report=lambda _: say("committed")))
    say("done")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""Streams of files through `windrow.foreach_batch` in a process of their own, to be killed: `streamer.py '[{...}]'`.

They run side by side. It says "committed" after each microbatch, and "done 0" when the first stream has read all files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import windrow
from tests.engine.driver import say
from windrow.settings.settings import Settings

SCHEMA = (
    "source STRING, key STRING, type STRING, event_time TIMESTAMP, received_at TIMESTAMP, sequence BIGINT, "
    "payload STRING"
)


def pass_files(
    session: SparkSession, files: str, checkpoint: str, at_once: int, function: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """Begin to pass all files of a directory that are new to a function, so many at once."""
    frames = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", at_once).parquet(files)
    writer = frames.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def main(orders: list[dict[str, Any]]) -> None:
    """Carry out all orders at once."""
    from windrow.engine.spark.session import local_session

    session = local_session("windrow-streamer", master="local[2]")
    queries = []
    for order in orders:
        files, checkpoint, at_once = (order.pop(name) for name in ("files", "checkpoint", "at_once"))
        function = windrow.foreach_batch(Settings(**order), report=lambda _: say("committed"))
        queries.append(pass_files(session, files, checkpoint, at_once, function))
    for number, query in enumerate(queries):
        query.awaitTermination()
        say(f"done {number}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

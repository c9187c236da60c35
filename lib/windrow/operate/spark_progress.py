"""What Spark says of its streaming queries, for whoever looks at the log more closely than a microbatch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from windrow.operate.log import log


class Queries(StreamingQueryListener):
    """Writes a line for the start, each batch and the end of a streaming query of the session."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Say which query began."""
        log.debug("query started", query=str(event.id), run=str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Say how many rows a batch of Spark read, each as often as it was, and how many milliseconds what took."""
        done = event.progress
        took = dict(done.durationMs)
        log.debug("query progress", query=str(done.id), batch=done.batchId, rows_read=done.numInputRows, took_ms=took)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Say nothing: a query that has nothing to do ends."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Say how it ended."""
        log.debug("query ended", query=str(event.id), run=str(event.runId), error=event.exception)


@contextmanager
def listening(session: SparkSession) -> Iterator[None]:
    """Listen to the queries of a session, if the log is written from `debug` on: every event costs a call from Java."""
    if not log.isEnabledFor(logging.DEBUG):
        yield
        return
    listener = Queries()
    session.streams.addListener(listener)
    try:
        yield
    finally:
        session.streams.removeListener(listener)

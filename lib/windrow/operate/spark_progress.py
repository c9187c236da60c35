"""Log the progress of Spark's streaming queries, at level debug."""

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
    """Logs the start, each batch and the end of the session's streaming queries."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Log the start of a query."""
        log.debug("query started", query=str(event.id), run=str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Log the rows that a Spark batch read, including repeated reads, and the durations in milliseconds."""
        progress = event.progress
        took = dict(progress.durationMs)
        log.debug(
            "query progress",
            query=str(progress.id),
            batch=progress.batchId,
            rows_read=progress.numInputRows,
            took_ms=took,
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Log nothing, because idle queries end."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Log the end of a query, with its error."""
        log.debug("query ended", query=str(event.id), run=str(event.runId), error=event.exception)


@contextmanager
def listening(session: SparkSession) -> Iterator[None]:
    """Listen to the queries of a session only at log level debug, since every event costs a call from Java."""
    if not log.isEnabledFor(logging.DEBUG):
        yield
        return
    listener = Queries()
    session.streams.addListener(listener)
    try:
        yield
    finally:
        session.streams.removeListener(listener)

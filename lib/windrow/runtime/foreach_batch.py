"""The function for `writeStream.foreachBatch` of a stream that the user owns: `windrow.foreach_batch`.

Each frame is appended to the depot in one commit, under the id of the streaming query and the number of the batch; then
the batcher runs. If Spark repeats a batch, its commit is found and nothing is appended. The commit records the content
of the batch: if the newest files of a checkpoint are lost, Spark reuses a known number for other rows, and these are
appended under a separate name. They may be in the depot already, as after the loss of the whole checkpoint, which gives
the query a new id. The batcher rejects a repeated message on record, because its window has it already or is closed. So
every message is in one batch, whatever becomes of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from windrow.engine import open_engine
from windrow.errors import EngineUnavailableError
from windrow.expressions import ColumnMapping
from windrow.ingest import writer_of
from windrow.ingest.writer import IngestInput
from windrow.model.results import CommittedMicrobatch
from windrow.operate import Observer
from windrow.operate.log import log
from windrow.runtime.run import run
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windrow.ingest.spark import SparkWriter


def foreach_batch(
    settings: Settings | None = None,
    report: Callable[[CommittedMicrobatch], None] = lambda committed: None,
    observers: Iterable[Observer] = (),
    stream: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch`, which appends a frame to the depot and runs the batcher.

    The depot is created if it does not exist.

    Args:
        settings: The settings, by default those of `windrow.toml`; `[ingest.columns]` maps the columns of the frame.
        report: Called after each commit, as by `windrow.run`.
        observers: Those of `windrow.run`.
        stream: A name that no other stream into this depot has. It is needed on Spark Connect, which hides the id of
            the query.

    Returns:
        The function, which raises the errors of `windrow.run`, and EngineUnavailableError without a `stream` on Spark
        Connect.

    Raises:
        SettingsError: A setting is wrong.

    Example:
        >>> stream = spark.readStream.table("main.bronze.events")  # doctest: +SKIP
        >>> stream.writeStream.foreachBatch(windrow.foreach_batch()).start()  # doctest: +SKIP
    """
    from windrow.rows.frame import schema_of

    settings = (settings or Settings.load()).model_copy(update={"engine": "spark"})

    def append_and_run(frame: DataFrame, batch_id: int) -> None:
        session = frame.sparkSession
        query = _query_of(frame) if stream is None else f"stream:{stream}"
        writer = cast("SparkWriter", writer_of(open_engine(settings, session), settings))
        writer.repair()
        schema = schema_of(frame)
        input_ = IngestInput(f"batch {batch_id} of the stream", schema, None, frame)
        mapping = ColumnMapping.of(settings.ingest.columns, frame.columns)
        writer.create(mapping.payload_type(schema), settings.retention)
        # guard: stream-batch-once
        if writer.append_batch(input_, mapping, query, batch_id):
            log.warning("the stream gave a known number to other rows; they were appended", batch=batch_id)
        run(settings, spark=session, report=report, observers=observers)

    return append_and_run


def _query_of(frame: DataFrame) -> str:
    """Return the transaction id of the streaming query that passed this frame; each checkpoint has its own."""
    try:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception as error:
        raise EngineUnavailableError(
            "windrow.foreach_batch needs a name for the stream: Spark Connect hides the id of the streaming query",
            "Pass one that no other stream of this depot has: foreach_batch(settings, stream='readings').",
        ) from error
    if query is None:
        raise EngineUnavailableError(
            "windrow.foreach_batch was called outside a stream", "Pass it to writeStream.foreachBatch(...)."
        )
    return f"stream:{query}"

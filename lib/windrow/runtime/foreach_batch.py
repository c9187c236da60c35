"""The microbatch for `writeStream.foreachBatch` of a stream that the user owns: `windrow.foreach_batch`.

Each frame is appended to the depot in one commit, under the id of the streaming query and the number of the batch; then
the batcher runs. A batch that Spark repeats finds its commit and appends nothing. A query that lost its checkpoint has
a new id and reads its source again: its messages reach the depot a second time, and the batcher rejects them on record,
because their windows hold them already or are closed. So every message is in one batch at most, whatever becomes of the
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from windrow.engine import open_engine
from windrow.engine.protocol import Engine, Input
from windrow.errors import EngineUnavailable, OtherInput
from windrow.expressions import Mapping
from windrow.model.results import Committed
from windrow.operate import Observer
from windrow.runtime.run import run
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def foreach_batch(
    settings: Settings | None = None,
    report: Callable[[Committed], None] = lambda committed: None,
    observers: Iterable[Observer] = (),
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch`, which appends a frame to the depot and batches what the depot has.

    `[ingest.columns]` maps the columns of the frame to those of a message. The depot is created if it does not exist.
    `report` and `observers` are those of `windrow.run`. The function raises OtherInput if the query returned to a
    batch before its last one, EngineUnavailable on Spark Connect, and the errors of `windrow.run`.
    """
    from windrow.rows.frame import schema_of

    settings = (settings or Settings.load()).model_copy(update={"engine": "spark"})
    started: set[str] = set()

    def append_and_run(frame: DataFrame, batch_id: int) -> None:
        session = frame.sparkSession
        query = _query_of(frame)
        engine = open_engine(settings, session)
        engine.mend()
        schema = schema_of(frame)
        given = Input(f"batch {batch_id} of the stream", "stream", schema, None, frame)
        mapping = Mapping.of(settings.ingest.columns, frame.columns)
        engine.create_depot(mapping.payload_type(schema), settings.keep)
        if query not in started:
            _require_forward(engine, query, batch_id)
            started.add(query)
        # guard: stream-batch-once
        engine.append(given, mapping, (query, batch_id), None, lambda rows: None)
        run(settings, spark=session, report=report, observers=observers)

    return append_and_run


def _query_of(frame: DataFrame) -> str:
    """Return the transaction id of the streaming query that passed this frame; each checkpoint has another."""
    try:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception as error:
        raise EngineUnavailable(
            "windrow.foreach_batch needs Spark without Connect, which hides the id of the streaming query",
            "Write the stream into a depot, and run `windrow run` over it.",
        ) from error
    if query is None:
        raise EngineUnavailable(
            "windrow.foreach_batch was called outside of a stream", "Pass it to writeStream.foreachBatch(...)."
        )
    return f"stream:{query}"


def _require_forward(engine: Engine, query: str, batch_id: int) -> None:
    """Refuse a query that returned to an older batch: Delta would skip the append, whatever the frame holds."""
    recorded = engine.transaction(query, batch_id + 1)
    # guard: rewound-stream-stops
    if recorded is not None and recorded > batch_id:
        raise OtherInput(
            f"the stream has returned to batch {batch_id}, but the depot has a later batch of it",
            "Part of its checkpoint was deleted. Start the stream with a new checkpoint directory: what it reads again "
            "is recognised.",
        )

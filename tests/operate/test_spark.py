import logging
from queue import Queue

import pytest

import windrow
from tests.engine.factory import EngineFactory
from tests.messages import log
from windrow.operate.spark_progress import listening


class Into(logging.Handler):
    """Puts records into a queue, because Spark reports on queries in another thread."""

    def __init__(self, queue):
        super().__init__()
        self._queue = queue

    def emit(self, record):
        """Put it."""
        self._queue.put(record)


def until(queue, event):
    """Return the records up to the first one with an event."""
    records = []
    while not records or records[-1].msg != event:
        records.append(queue.get(timeout=60))
    return records


def listeners(spark):
    """Return how many listeners the session has."""
    return len(spark._jsparkSession.streams().listListeners())


@pytest.fixture
def heard():
    """The log at level `debug`."""
    logger, queue = logging.getLogger("windrow"), Queue()
    handler = Into(queue)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield queue
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


class TestQueries:
    @pytest.mark.ci
    def test_tells_of_a_query(self, spark, world, heard):
        """From `debug` on the log has the start, the batches and the end of Spark's query; no listener stays behind."""
        world.publish(*log(versions=1))
        settings, before = world.settings(EngineFactory("spark", spark), idle_timeout="never"), listeners(spark)
        with listening(spark):
            assert listeners(spark) == before + 1
            windrow.run(settings, spark=spark, clock=world.clock)
            assert listeners(spark) == before + 1
            records = until(heard, "query ended")
        assert listeners(spark) == before
        assert {"run started", "microbatch", "query started"} <= {record.msg for record in records}
        progress = [record for record in records if record.msg == "query progress"]
        assert progress[0].rows_read >= 30
        assert progress[0].took_ms["triggerExecution"] >= progress[0].took_ms["addBatch"] > 0
        logging.getLogger("windrow").setLevel(logging.INFO)
        with listening(spark):
            assert listeners(spark) == before

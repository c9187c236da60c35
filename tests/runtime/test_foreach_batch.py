"""The microbatch as a function for a stream of the user: repeated, lost and rewound checkpoints."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import windrow
from tests.clocks import NOW
from tests.engine.streamer import SCHEMA, pass_files
from tests.messages import SECOND, message, table
from windrow.columnar.arrow import to_plain_types
from windrow.reading.tables import open_ledger
from windrow.settings.settings import Settings


class Stream:
    """A stream of Parquet files that somebody else wrote, with a checkpoint."""

    def __init__(self, spark: SparkSession, root: Path, **settings: Any) -> None:
        self.spark, self.root = spark, root
        self.files, self.checkpoint = root / "files", root / "checkpoint"
        self.files.mkdir()
        self.settings = Settings(depot=str(root / "depot"), ledger=str(root / "ledger"), engine="spark", **settings)

    def arrive(self, *seconds: int) -> None:
        """Add a file with one message for each second; each second is a window."""
        rows = [message(event_time=NOW + at * SECOND, received_at=NOW + at * SECOND) for at in seconds]
        file = self.files / f"{seconds[0]:04}.parquet"
        pq.write_table(table(rows), file)
        os.utime(file, (seconds[0], seconds[0]))  # a file stream takes the oldest first

    def run(self, function: Any = None, files: int = 1) -> None:
        """Run the user's stream until it has read all files, so many in a batch."""
        function = function or windrow.foreach_batch(self.settings)
        pass_files(self.spark, str(self.files), str(self.checkpoint), files, function).awaitTermination()

    def forget(self, *parts: str, batches: tuple[int, ...]) -> None:
        """Delete what parts of the checkpoint say of some batches, as a crash or a hand would."""
        for part in parts:
            for batch in batches:
                (self.checkpoint / part / str(batch)).unlink()
                (self.checkpoint / part / f".{batch}.crc").unlink(missing_ok=True)

    def damage(self, batch: int, emptied: bool) -> None:
        """Take all that the checkpoint says of its last batch, as a power cut does; the files may be left empty."""
        for part in ("offsets", "commits", "sources/0"):
            file = self.checkpoint / part / str(batch)
            if emptied:
                os.truncate(file, 0)
            else:
                file.unlink()
            (self.checkpoint / part / f".{batch}.crc").unlink(missing_ok=True)

    @property
    def depot(self) -> int:
        """Return how many messages the depot has."""
        return to_plain_types(DeltaTable(str(self.root / "depot")).to_pyarrow_table()).num_rows

    def batched(self) -> Counter[int]:
        """Return how often each second is in a batch, open or closed."""
        rows = open_ledger(str(self.root / "ledger")).rows(("open", "closed"), "messages").to_pylist()
        messages = [message for row in rows for message in row["messages"]]
        return Counter(int(message["event_time"].timestamp() * SECOND - NOW) // SECOND for message in messages)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path, rules={"window": "1s", "max_delay": "0s", "max_lead": "0s"})
    stream.arrive(0, 1)
    stream.arrive(2, 3, 4)
    return stream


@pytest.mark.slow
def test_repeated_batch_is_appended_once(stream: Stream) -> None:
    """A batch whose end the checkpoint does not know is passed again, and neither depot nor ledger changes."""
    stream.run()
    assert (stream.depot, stream.batched()) == (5, Counter(range(5)))
    stream.forget("commits", batches=(1,))
    stream.run()
    assert (stream.depot, stream.batched()) == (5, Counter(range(5)))


@pytest.mark.slow
def test_failure_between_append_and_microbatch(stream: Stream) -> None:
    """A stream that dies after the append batches what the depot has when it runs again."""
    (stream.root / "occupied").touch()
    broken = stream.settings.model_copy(update={"ledger": str(stream.root / "occupied" / "ledger")})
    with pytest.raises(StreamingQueryException):
        stream.run(windrow.foreach_batch(broken))
    assert stream.depot == 2
    stream.run()
    assert (stream.depot, stream.batched()) == (5, Counter(range(5)))


@pytest.mark.ci
def test_lost_checkpoint_doubles_nothing(stream: Stream) -> None:
    """A stream without its checkpoint reads all files again: the depot has them twice, the batches once."""
    (stream.files / "0002.parquet").unlink()
    stream.run()
    shutil.rmtree(stream.checkpoint)
    stream.arrive(2)
    stream.run()
    assert (stream.depot, stream.batched()) == (5, Counter(range(3)))


@pytest.mark.slow
@pytest.mark.parametrize("emptied", [False, True], ids=["lost", "emptied"])
def test_other_rows_under_a_known_number(stream: Stream, emptied: bool) -> None:
    """A power cut takes the newest files of the checkpoint, and Spark plans the last batch again, with one more file:
    the depot has the rows of both plans, and each message is in one batch, also if the same function object goes on.
    """
    function = windrow.foreach_batch(stream.settings)
    stream.run(function)
    stream.arrive(5)
    stream.damage(1, emptied)
    if emptied:
        with pytest.raises(StreamingQueryException, match="Failed to read log file"):  # then somebody deletes them
            stream.run(function)
        stream.damage(1, emptied=False)
    stream.run(function, files=2)
    assert (stream.depot, stream.batched()) == (9, Counter(range(6)))
    stream.forget("commits", batches=(1,))
    stream.arrive(6)
    stream.run(function, files=2)
    assert (stream.depot, stream.batched()) == (10, Counter(range(7)))


@pytest.mark.slow
def test_rewound_checkpoint_loses_nothing(stream: Stream) -> None:
    """A checkpoint that lost its batches, but not its id, gives other rows the numbers of known batches, and none is
    lost.
    """
    stream.run()
    stream.forget("offsets", "commits", "sources/0", batches=(0, 1))
    stream.arrive(5)
    stream.run(files=3)
    stream.arrive(6)
    stream.run()
    assert (stream.depot, stream.batched()) == (12, Counter(range(7)))


def test_only_in_a_stream(spark: SparkSession, stream: Stream) -> None:
    """Without a streaming query there is no id under which a repeated batch would be recognised."""
    frame = spark.read.schema(SCHEMA).parquet(str(stream.files))
    with pytest.raises(windrow.errors.EngineUnavailableError, match="outside a stream"):
        windrow.foreach_batch(stream.settings)(frame, 0)

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import streams
from benchmarks.peers import inputs
from benchmarks.suite import growth
from windrow.model import tables


def increasing(table: pa.Table, column: str) -> bool:
    """Tell whether the times of a column never decrease."""
    times = table[column].cast(pa.int64()).to_numpy()
    return bool((times[1:] >= times[:-1]).all())


class TestStreams:
    def test_collectd(self) -> None:
        """Every stream sends each type once a second."""
        messages = streams.collectd(3, 4, 5)
        counted = messages.group_by(["source", "key", "type"]).aggregate([("payload", "count")])
        assert counted.num_rows == 3 * 4
        assert set(counted["payload_count"].to_pylist()) == {5}

    def test_one_stream(self) -> None:
        """One stream has so many messages a second, in the order of arrival; if none is late, that is the order of
        time.
        """
        for latest in (0, 75_000):
            messages = streams.one_stream(1_001, 1_000, 1, latest)
            assert pc.count_distinct(messages["key"]).as_py() == 1
            span = duckdb.sql("SELECT max(event_time) - min(event_time) FROM messages").fetchall()[0][0]
            assert span.total_seconds() == 1
            assert increasing(messages, "received_at")
            assert increasing(messages, "event_time") is (latest == 0)

    def test_many_streams(self) -> None:
        """Each key has one message of the type, and always the same source."""
        both = pa.concat_tables([streams.many_streams(3_000, kind, kind * streams.SECOND) for kind in (0, 1)])
        assert both.group_by(["source", "key"]).aggregate([]).num_rows == 3_000
        assert both.group_by(["key", "type"]).aggregate([]).num_rows == 6_000


def test_generated_in_pieces() -> None:
    """What is counted from a later number comes after what was before it."""
    first, second = inputs.generated(2_000), inputs.generated(2_000, first=2_000)
    assert pc.max(first["event_time"]).as_py() < pc.min(second["event_time"]).as_py()


def test_closed_batches() -> None:
    """Closed batches that are made for a ledger have its columns, an id of their own and as many messages as they
    say.
    """
    rows = pa.concat_tables([growth.closed(0, 150), growth.closed(150, 50)])
    assert rows.schema == tables.ledger_schema()
    assert pc.count_distinct(rows["id"]).as_py() == 200
    assert pc.list_value_length(rows["messages"]).to_pylist() == rows["message_count"].to_pylist()

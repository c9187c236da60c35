"""What a message is in the columns of a depot."""

import base64

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.model import messages
from windrow.producer.bridge import times
from windrow.producer.bridge.mqtt_topics import Topics
from windrow.producer.bridge.reader import BASE64, MqttReader
from windrow.producer.row import table_of

MOST = 1_000


def reader(*patterns: str, event_time: str = "arrival", binary: bool = False) -> MqttReader:
    return MqttReader(Topics.parse(patterns), times.reader(event_time), "mqtt:b", binary, MOST)


@pytest.mark.parametrize(
    ("pattern", "source", "key", "type_"),
    [
        ("{source}/{key}/{type}", "a", "b", "c"),
        ("{source}/{type...}", "a", "a", "b/c"),
        ("{key}/{type...}", "mqtt:b", "a", "b/c"),
        ("{key}/#", "mqtt:b", "a", "a/b/c"),
        ("+/{source}/+", "b", "b", "a/b/c"),
        ("#", "mqtt:b", "a/b/c", "a/b/c"),
    ],
)
def test_defaults(pattern: str, source: str, key: str, type_: str) -> None:
    """What a topic does not say: the source is the bridge, the key the source that the topic names or else the topic,
    the type the topic.
    """
    row, fault = reader(pattern).read("a/b/c", b"21.5")
    assert (row.source, row.key, row.type, row.payload) == (source, key, type_, "21.5")
    assert row.event_time == row.received_at
    assert not fault


def test_no_pattern() -> None:
    """What matches no pattern has no type, and its topic as key."""
    row, fault = reader("a/{key}").read("b/c", b"1")
    assert (row.key, row.type, row.event_time, row.payload) == ("b/c", None, None, "1")
    assert "no pattern" in fault


@pytest.mark.parametrize(
    ("payload", "kept", "fault"),
    [
        (b"\xff\x00", BASE64 + base64.b64encode(b"\xff\x00").decode(), "not UTF-8 text"),
        (b"x" * MOST, "x" * MOST, "larger than"),
        (b"noon", "noon", "not JSON"),
    ],
)
def test_fault(payload: bytes, kept: str, fault: str) -> None:
    """What cannot be read keeps the columns of its topic and its payload, and has no event time."""
    row, reason = reader("{key}/{type}", event_time="json:at").read("pump-1/temperature", payload)
    assert (row.key, row.type, row.event_time, row.payload) == ("pump-1", "temperature", None, kept)
    assert fault in reason


def test_time_zero() -> None:
    """The epoch is a time as any other, and an empty level a key."""
    row, fault = reader("{source}/{key}", event_time="collectd").read("a/", b"0:1")
    assert (row.key, row.event_time, fault) == ("", 0, "")


def test_bytes() -> None:
    """A depot of bytes takes any payload as it is."""
    row, fault = reader("{key}/{type}", binary=True).read("a/b", b"\xff\x00")
    assert (row.payload, fault) == (b"\xff\x00", "")


@given(
    topic=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300),
    payload=st.binary(max_size=MOST),
    binary=st.booleans(),
)
def test_row_of_the_depot(topic: str, payload: bytes, binary: bool) -> None:
    """Whatever comes over a topic is a row of the depot; what has no fault is valid, and no larger than a message may
    be.
    """
    row, fault = reader("{key}/{type}", "{key}/+/#", event_time="json:at", binary=binary).read(topic, payload)
    schema = messages.schema(pa.binary() if binary else pa.string())
    assert table_of([[value] for value in row], schema)["payload"].to_pylist() == [row.payload]
    assert bool(fault) == (None in (row.key, row.type, row.event_time))
    assert fault or row.byte_count <= MOST

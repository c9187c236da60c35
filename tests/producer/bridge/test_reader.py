"""What a message is in the columns of a depot."""

import base64

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.producer.bridge import times
from windrow.producer.bridge.mqtt_topics import Topics
from windrow.producer.bridge.reader import BASE64, Reader
from windrow.producer.row import Form

MOST = 1_000


def reader(*patterns: str, event_time: str = "arrival", binary: bool = False) -> Reader:
    return Reader(Topics.parse(patterns), times.reader(event_time), "mqtt:b", binary, MOST)


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
    """
    What a topic does not say: the source is the bridge, the key the source that the topic names or else the topic, the
    type the topic.
    """
    found = reader(pattern).read("a/b/c", b"21.5")
    assert (found.source, found.key, found.type, found.payload) == (source, key, type_, "21.5")
    assert not found.fault


def test_no_pattern() -> None:
    """
    What matches no pattern has no type, and its topic as key.
    """
    found = reader("a/{key}").read("b/c", b"1")
    assert (found.key, found.type, found.event_time, found.payload) == ("b/c", None, None, "1")
    assert "no pattern" in found.fault


@pytest.mark.parametrize(
    ("payload", "kept", "fault"),
    [
        (b"\xff\x00", BASE64 + base64.b64encode(b"\xff\x00").decode(), "not UTF-8 text"),
        (b"x" * MOST, "x" * MOST, "larger than"),
        (b"noon", "noon", "not JSON"),
    ],
)
def test_fault(payload: bytes, kept: str, fault: str) -> None:
    """
    What cannot be read keeps the columns of its topic and its payload, and has no event time.
    """
    found = reader("{key}/{type}", event_time="json:at").read("pump-1/temperature", payload)
    assert (found.key, found.type, found.event_time, found.payload) == ("pump-1", "temperature", None, kept)
    assert fault in found.fault


def test_bytes() -> None:
    """
    A depot of bytes takes any payload as it is.
    """
    found = reader("{key}/{type}", binary=True).read("a/b", b"\xff\x00")
    assert (found.payload, found.fault) == (b"\xff\x00", "")


@given(
    topic=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300),
    payload=st.binary(max_size=MOST),
    binary=st.booleans(),
)
def test_producer_takes_it(topic: str, payload: bytes, binary: bool) -> None:
    """
    Whatever comes over a topic is a message or a faulty one that a producer takes, of the size that was counted.
    """
    found = reader("{key}/{type}", "{key}/+/#", event_time="json:at", binary=binary).read(topic, payload)
    form = Form("mqtt:b", pa.binary() if binary else pa.string(), MOST)
    if found.fault:
        row = form.invalid(source=found.source, key=found.key, type=found.type, payload=found.payload)
    else:
        assert found.type is not None
        row = form.row(source=found.source, key=found.key, type=found.type, payload=found.payload)
    assert row.byte_count == found.byte_count

"""When a message happened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.producer.bridge import times
from windrow.producer.bridge.times import InvalidEventTime

NOON = 1_769_860_800_000_000


@pytest.mark.parametrize(
    ("where", "payload", "moment"),
    [
        ("arrival", b"\xff", None),
        ("collectd", b"1769860800.250:1.5:nan\0", NOON + 250_000),
        ("collectd", b"1769860800:U\0", NOON),
        ("collectd", b"1769860800\0", NOON),
        ("json:at", b'{"at": "2026-01-31T12:00:00Z"}', NOON),
        ("json:at", b'{"at": "2026-01-31T13:00:00.000001+01:00"}', NOON + 1),
        ("json:at", b'{"at": "2026-01-31 12:00:00"}', NOON),
        ("json:at", b'{"at": 1769860800}', NOON),
        ("json:at", b'{"at": 1769860800.9999999999}', NOON + 999_999),
        ("json:at", b'{"at": "1769860800.5"}', NOON + 500_000),
        ("json:at:ms", b'{"at": 1769860800001}', NOON + 1_000),
        ("json:at:us", b'{"at": 1.769860800000001e15}', NOON + 1),
        ("json:a.b", b'{"a": {"b": -1}}', -1_000_000),
    ],
)
def test_moment(where: str, payload: bytes, moment: int | None) -> None:
    """The time is read from where the settings say, exactly, and what is finer than a microsecond is floored."""
    assert times.reader(where)(payload) == moment


@pytest.mark.parametrize(
    ("where", "payload"),
    [
        ("collectd", b"nan:1"),
        ("collectd", b""),
        ("collectd", b"\xff:1"),
        ("collectd", b"1e999999999:1"),
        ("collectd", b"1e99999999999999999999:1"),
        ("collectd", b"0e99999999999999999999:1"),
        ("collectd", b"1e-99999999999999999999:1"),
        ("collectd", b"9" * 64 + b":1"),
        ("collectd", b"9" * 1_000_000 + b":1"),
        ("json:at", b"no json"),
        ("json:at", b"[" * 200_000),
        ("json:at", b"[1]"),
        ("json:at", b'{"time": 1}'),
        ("json:at", b'{"at": true}'),
        ("json:at", b'{"at": null}'),
        ("json:at", b'{"at": NaN}'),
        ("json:at", b'{"at": 1e99999999999999999999}'),
        ("json:at", b'{"at": "noon"}'),
        ("json:at", b'{"at": "\\ud800"}'),
        ("json:at.x", b'{"at": 1}'),
    ],
)
def test_unread(where: str, payload: bytes) -> None:
    """A payload that says no time is told in one line, and takes neither time nor memory."""
    with pytest.raises(InvalidEventTime) as caught:
        times.reader(where)(payload)
    assert 0 < len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


@pytest.mark.parametrize("where", ["", "json", "json:", "json:a..b", "xml:a", "json::ms"])
def test_mistake(where: str) -> None:
    """A setting that says no place of a time is an error."""
    with pytest.raises(SettingsError, match="event_time"):
        times.reader(where)


@given(payload=st.binary(max_size=50), where=st.sampled_from(["arrival", "collectd", "json:a", "json:a:ms"]))
def test_any_payload(payload: bytes, where: str) -> None:
    """Whatever a payload is, it has a time that fits a column, or has none."""
    try:
        moment = times.reader(where)(payload)
    except InvalidEventTime:
        return
    assert moment is None or -(2**63) < moment < 2**63

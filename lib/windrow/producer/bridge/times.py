"""Read the event time of a broker's messages: the time of arrival, or a time in the payload."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation

from windrow.errors import SettingsError
from windrow.model.timestamps import microseconds_of

UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
GREATEST = 2**63 - 1
MAX_DIGITS = 64  # characters of a number; longer ones are refused
EXACT = Context(prec=2 * MAX_DIGITS)
NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)

Time = Callable[[bytes], int | None]


class InvalidEventTime(ValueError):
    """A payload has no readable event time."""


def reader(text: str) -> Time:
    """Return a function that reads the event time from a payload: microseconds, or None for the time of arrival.

    `text` is `arrival`, `collectd` (seconds before the first colon) or `json:FIELD` (dots lead into objects; ISO 8601
    text or seconds), `json:FIELD:ms` (milliseconds) or `json:FIELD:us` (microseconds). The function raises
    InvalidEventTime. Raises SettingsError.
    """
    if text == "arrival":
        return lambda payload: None
    if text == "collectd":
        return _of_collectd
    kind, _, rest = text.partition(":")
    field, colon, unit = rest.rpartition(":")
    if not colon or unit not in UNITS:
        field, unit = rest, "s"
    path = field.split(".")
    if kind != "json" or not all(path):
        raise SettingsError(
            f"event_time = {text!r} is not valid",
            "Use arrival, collectd, json:FIELD, json:FIELD:ms or json:FIELD:us.",
        )
    return lambda payload: _of_json(payload, path, UNITS[unit])


def _of_collectd(payload: bytes) -> int:
    seconds = payload.partition(b":")[0].rstrip(b"\0")
    try:
        text = seconds.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidEventTime("there is no number before the first colon") from None
    return _microseconds(text, UNITS["s"])


def _of_json(payload: bytes, path: list[str], unit: int) -> int:
    try:
        value = json.loads(payload, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        raise InvalidEventTime("the payload is not JSON") from None
    for name in path:
        if not isinstance(value, dict) or name not in value:
            raise InvalidEventTime(f"the payload has no field {'.'.join(path)}")
        value = value[name]
    if not isinstance(value, str):
        raise InvalidEventTime(f"{'.'.join(path)} is not a time")
    return _microseconds(value, unit) if NUMBER.fullmatch(value) else _moment(value)


def _moment(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidEventTime(f"{text[:MAX_DIGITS]!r} is not a time") from None
    return microseconds_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _microseconds(text: str, unit: int) -> int:
    """Return a decimal number in microseconds, rounded down."""
    if len(text) > MAX_DIGITS or not NUMBER.fullmatch(text):
        raise InvalidEventTime(f"{text[:MAX_DIGITS]!r} is not a number")
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise InvalidEventTime(f"{text!r} is out of range") from None
    if number.adjusted() > len(str(GREATEST)):
        raise InvalidEventTime(f"{text!r} is out of range")
    value = int(EXACT.multiply(number, Decimal(unit)).to_integral_value(ROUND_FLOOR))
    if abs(value) > GREATEST:
        raise InvalidEventTime(f"{text!r} is out of range")
    return value

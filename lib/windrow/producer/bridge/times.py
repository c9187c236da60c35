"""When a message happened: when it arrived, or where its payload says so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Context, Decimal

from windrow.errors import SettingsError
from windrow.model.timestamps import microseconds_of

UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
GREATEST = 2**63 - 1
LONGEST = 64  # characters of a number, beyond which it is none
EXACT = Context(prec=2 * LONGEST)
NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)

Time = Callable[[bytes], int | None]


class TimeUnread(ValueError):
    """A payload does not say when it happened."""


def reader(text: str) -> Time:
    """Return what reads the event time out of a payload: microseconds, or None for the time of arrival.

    `arrival`; `collectd`: seconds before the first colon; `json:FIELD` with dots into objects, text in ISO 8601 or
    seconds, `json:FIELD:ms` milliseconds, `json:FIELD:us` microseconds. What it returns raises TimeUnread.
    Raises SettingsError.
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
            f"mqtt.event_time = {text!r} says no time", "It is arrival, collectd, json:FIELD, or json:FIELD:ms."
        )
    return lambda payload: _of_json(payload, path, UNITS[unit])


def _of_collectd(payload: bytes) -> int:
    seconds = payload.partition(b":")[0].rstrip(b"\0")
    try:
        text = seconds.decode("ascii")
    except UnicodeDecodeError:
        raise TimeUnread("no number stands before the first colon") from None
    return _microseconds(text, UNITS["s"])


def _of_json(payload: bytes, path: list[str], unit: int) -> int:
    try:
        value = json.loads(payload, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        raise TimeUnread("the payload is no JSON") from None
    for name in path:
        if not isinstance(value, dict) or name not in value:
            raise TimeUnread(f"the payload has no field {'.'.join(path)}")
        value = value[name]
    if not isinstance(value, str):
        raise TimeUnread(f"{'.'.join(path)} is no time")
    return _microseconds(value, unit) if NUMBER.fullmatch(value) else _moment(value)


def _moment(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise TimeUnread(f"{text[:LONGEST]!r} is no time") from None
    return microseconds_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _microseconds(text: str, unit: int) -> int:
    """Return a decimal number as microseconds, what is finer floored."""
    if len(text) > LONGEST or not NUMBER.fullmatch(text):
        raise TimeUnread(f"{text[:LONGEST]!r} is no number")
    number = Decimal(text)
    if number.adjusted() > len(str(GREATEST)):
        raise TimeUnread(f"{text!r} is out of range")
    value = int(EXACT.multiply(number, Decimal(unit)).to_integral_value(ROUND_FLOOR))
    if abs(value) > GREATEST:
        raise TimeUnread(f"{text!r} is out of range")
    return value

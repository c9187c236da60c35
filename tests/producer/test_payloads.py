"""Payloads that are numbers, booleans or structs, sent by a program or as lines."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from windrow.errors import IncompatibleTableError, InvalidMessageError, MessagesError, SettingsError
from windrow.producer import Producer
from windrow.producer.lines import Fields, LineReader

STRUCT = "struct<celsius: double, unit: string, raw: binary>"
WHOLE = {"celsius": 1.5, "unit": "C", "raw": b"\xff"}
FITTING: list[tuple[str, Any, Any]] = [
    ("double", 21, 21.0),
    ("double", -0.0, -0.0),
    ("double", "Infinity", math.inf),
    ("bigint", 2**63 - 1, 2**63 - 1),
    ("boolean", False, False),
    ("struct<celsius: double, unit: string, raw: binary>", WHOLE, WHOLE),
    (STRUCT, {"unit": "K", "raw": "text"}, {"celsius": None, "unit": "K", "raw": b"text"}),
    (STRUCT, None, None),
]
UNFIT: list[tuple[str, Any, str]] = [
    ("double", "21.5", "is not a number"),
    ("double", True, "is not a number"),
    ("double", 10**400, "too large"),
    ("bigint", 1.0, "is not a 64-bit integer"),
    ("bigint", 2**63, "is not a 64-bit integer"),
    ("boolean", 0, "is neither true nor false"),
    (STRUCT, 5, "is not an object with celsius"),
    (STRUCT, {"fahrenheit": 1}, "has a field 'fahrenheit', which the depot does not have"),
    (STRUCT, {"celsius": "warm"}, "has a field celsius that is not a number"),
    (STRUCT, {"unit": 1}, "has a field unit that is not text"),
    (STRUCT, {"unit": "\ud800"}, "half of a character"),
    (STRUCT, {"raw": 1}, "is neither text nor bytes"),
]


def payloads(depot: str) -> list[Any]:
    """Return the payloads in a depot, in the order of their sequences."""
    return DeltaTable(depot).to_pyarrow_table().sort_by("sequence")["payload"].to_pylist()


class TestSend:
    @pytest.mark.parametrize(("kind", "value", "kept"), FITTING)
    def test_kept(self, depot: str, kind: str, value: Any, kept: Any) -> None:
        """A value of the depot's type is kept as it is; a field that is missing in a struct is NULL."""
        with Producer(depot, "p", payload=kind) as producer:
            producer.send(key="k", type="t", payload=value)
        assert repr(payloads(depot)) == repr([kept])

    @pytest.mark.parametrize(("kind", "value", "why"), UNFIT)
    def test_refused(self, depot: str, kind: str, value: Any, why: str) -> None:
        """Any other value is refused with the reason, and nothing is sent."""
        with Producer(depot, "p", payload=kind) as producer, pytest.raises(InvalidMessageError, match=why):
            producer.send(key="k", type="t", payload=value)
        assert payloads(depot) == []

    def test_many(self, depot: str) -> None:
        """A table may have the depot's type, or one that Arrow casts to it without loss."""
        rows = pa.table({"key": ["k", "k"], "type": ["a", "b"]})
        with Producer(depot, "p", payload="double") as producer:
            producer.send_many(rows.append_column("payload", pa.array([1, None]))).result()
            producer.send_many(rows.append_column("payload", pa.array([math.nan, -0.0]))).result()
            with pytest.raises(MessagesError, match="payload"):
                producer.send_many(rows.append_column("payload", pa.array([b"x", b"y"])))
        assert repr(payloads(depot)) == repr([1.0, None, math.nan, -0.0])

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            ("double", pa.array(["1"])),
            ("bigint", pa.array([1.0])),
            ("boolean", pa.array([0.5])),
            ("struct<a: double>", pa.array([{"A": 1.0}])),
            ("struct<a: double>", pa.array([{"a": 1.0, "b": 2.0}])),
            ("struct<a: string>", pa.array([{"a": 1}])),
        ],
    )
    def test_many_of_another_type(self, depot: str, kind: str, values: pa.Array) -> None:
        """A table whose payloads are of another kind is refused as `send` refuses them, and no field is lost or
        NULL.
        """
        with Producer(depot, "p", payload=kind) as producer, pytest.raises(MessagesError, match="the payloads are"):
            producer.send_many(pa.table({"key": ["k"], "type": ["a"], "payload": values}))
        assert payloads(depot) == []

    def test_type_is_the_depot_s(self, depot: str) -> None:
        """A depot keeps its type, whatever the next producer asks for; an unknown type is refused."""
        with Producer(depot, "p", payload="bigint"):
            pass
        with Producer(depot, "q") as producer:
            producer.send(key="k", type="t", payload=5)
        assert payloads(depot) == [5]
        with pytest.raises(SettingsError, match="unknown payload type"):
            Producer(depot, "r", payload="float")

    def test_bridge(self, depot: str) -> None:
        """A bridge, which asks whether payloads are bytes or text, is told that they are neither."""
        with Producer(depot, "p", payload="double") as producer, pytest.raises(IncompatibleTableError, match="DOUBLE"):
            _ = producer.binary


class TestLines:
    @pytest.mark.parametrize("column", ["payload=*", "payload='5'"])
    def test_no_text(self, column: str) -> None:
        """A whole line, or a constant text, is no payload of a depot of numbers."""
        with pytest.raises(SettingsError, match="not text"):
            LineReader(Fields.of([column]), "p", 1_000, pa.float64())

    @pytest.mark.parametrize("line", ['"payload": 1e400', '"payload": {"a": -1e400}'])
    def test_too_large(self, line: str) -> None:
        """A number in JSON that no DOUBLE holds is no infinity: its line is no message."""
        type_ = pa.struct([("a", pa.float64())]) if "{" in line else pa.float64()
        whole = f'{{"key": "k", "type": "t", "event_time": "2026-01-31T12:00:00Z", {line}}}'.encode()
        rows = LineReader(Fields.of([]), "p", 1_000, type_).read([whole], 1, 0)
        assert [fault.reason for fault in rows.faults] == ["payload has a number that is too large"]
        assert rows.table["payload"].to_pylist() == [None]

"""The canonical form of values that only the states of topologies have."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from windrow.columnar.arrow import TIME
from windrow.model import canonical


@pytest.mark.parametrize(
    ("type_", "value", "encoded"),
    [
        (pa.decimal128(10, 2), Decimal("1.50"), b"1.50"),
        (pa.date32(), date(2023, 11, 14), b"2023-11-14"),
        (pa.float32(), 1.5, b"3ff8000000000000"),
        (pa.list_(pa.int64()), [], b""),
        (pa.list_(pa.string()), ["a", None, "bc"], b"1:a,~2:bc,"),
        (pa.list_(TIME), [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], b"7:1000000,"),
        (pa.list_(pa.list_(pa.int64())), [[1], [2, 3]], b"4:1:1,,8:1:2,1:3,,"),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, b"8:1:a,1:1,,"),
    ],
    ids=str,
)
def test_values(type_: pa.DataType, value: Any, encoded: bytes) -> None:
    """A list is its elements and a map its entries, each a netstring; decimals and dates are text. NULL stays NULL."""
    assert canonical.encode_values(pa.array([value, None, value], type_)).to_pylist() == [encoded, None, encoded]

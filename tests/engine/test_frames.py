"""Arrow tables as Spark frames."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from windrow.engine.frames import frame_of


@pytest.mark.parametrize("counts", [(0, 2), (1, 0, 2), (3,), (0,), ()], ids=str)
def test_chunks(spark: Any, counts: tuple[int, ...]) -> None:
    """
    Every row arrives, whichever chunks it is in and whichever of them are empty. This holds the guard in `frame_of`.
    """
    lists = pa.list_(pa.struct([pa.field("a", pa.int64())]))
    chunks = [pa.array([[{"a": count}]] * count, lists) for count in counts]
    given = pa.table({"messages": pa.chunked_array(chunks, lists)})
    assert frame_of(spark, given).toArrow().to_pylist() == given.to_pylist()

"""Arrow tables as Spark frames."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from windrow.rows.frame import LARGE, frame_of


@pytest.mark.parametrize("counts", [(0, 2), (1, 0, 2), (3,), (0,), (), (LARGE, 0, LARGE + 1), (2, LARGE)], ids=str)
def test_chunks(spark: Any, counts: tuple[int, ...]) -> None:
    """
    Every row arrives, whichever chunks it is in and whichever of them are empty. This holds the guard in `frame_of`.
    """
    lists = pa.list_(pa.struct([pa.field("a", pa.int64())]))
    chunks = [pa.array([[{"a": at}] for at in range(count)], lists) for count in counts]
    given = pa.table({"messages": pa.chunked_array(chunks, lists)})
    arrived = frame_of(spark, given).toArrow()
    assert Counter(map(str, arrived["messages"].to_pylist())) == Counter(map(str, given["messages"].to_pylist()))

"""Arrow tables as Spark frames."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from windrow.rows.frame import LARGE, frame_of


@pytest.mark.parametrize("counts", [(0, 2), (1, 0, 2), (3,), (0,), (), (LARGE, 0, LARGE + 1), (2, LARGE)], ids=str)
def test_chunks(spark: Any, counts: tuple[int, ...]) -> None:
    """Every row arrives, whichever chunks it is in and whichever of them are empty. This holds the guard in
    `frame_of`.
    """
    lists = pa.list_(pa.struct([pa.field("a", pa.int64())]))
    chunks = [pa.array([[{"a": at}] for at in range(count)], lists) for count in counts]
    sent = pa.table({"messages": pa.chunked_array(chunks, lists)})
    arrived = frame_of(spark, sent).toArrow()
    assert Counter(map(str, arrived["messages"].to_pylist())) == Counter(map(str, sent["messages"].to_pylist()))


def test_lists_within_a_longer_array(spark: Any) -> None:
    """Every row arrives of a large chunk whose lists, some of them NULL, are a part of a longer array. So it is with
    the rows of a microbatch that moves ten thousand clocks.
    """
    lists = pa.list_(pa.struct([pa.field("a", pa.timestamp("us", "UTC"))]))
    column = pa.array([[{"a": at}] if at % 2 else None for at in range(2 * LARGE)], lists)
    number = pa.chunked_array([range(LARGE // 2), range(LARGE // 2, 2 * LARGE)])
    table = pa.table({"number": number, "messages": column})
    assert [batch["messages"].offset for batch in table.to_batches()] == [0, LARGE // 2]
    arrived = frame_of(spark, table).toArrow().sort_by("number")
    assert arrived["messages"].to_pylist() == column.to_pylist()

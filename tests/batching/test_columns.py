from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import message, table
from windrow.batching.columns import by_stream
from windrow.model import tables

NO_BATCHES = pa.schema(tables.batch_fields(pa.string())).empty_table()


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 20))
def test_shares(counts: list[int], size: int) -> None:
    """Shares are runs of streams that follow each other, none of them empty; but for the stream it begins with, none
    has more than its part of the rows.
    """
    messages = table([message(key=str(key)) for key, count in enumerate(counts) for _ in range(count)])
    version = np.arange(messages.num_rows)
    shares = by_stream(messages, version, version, NO_BATCHES).shares(size)
    assert (shares[0][0], shares[-1][1]) == (0, len(counts))
    assert all(share[1] == next_[0] for share, next_ in pairwise(shares))
    assert all(first < last for first, last in shares) or not counts
    most = sum(counts) / max(1, round(sum(counts) / size))
    assert all(sum(counts[first + 1 : last]) <= most for first, last in shares)

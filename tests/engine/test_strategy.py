"""Where a microbatch is processed and what it reads, by the size of what is open and of what arrived."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from windrow.ledger.strategy import (
    BATCH_BYTES,
    GOOD_PART,
    LITTLE_BYTES,
    MESSAGE_BYTES,
    OPEN_MESSAGES,
    fits_driver,
    keeps_headers,
    reads_all,
)
from windrow.model.open_batches import OpenBatchTotals

COUNTS = st.integers(0, 10**9)

CACHED = 64_000_000


def opened(batches: int, messages: int, size: int) -> OpenBatchTotals:
    """Return totals of two sources that hold so much together."""
    counts = np.array([[number // 2, number - number // 2] for number in (batches, messages, size)], np.int64)
    return OpenBatchTotals(pa.array(["a", "b"]), counts, np.array([1, 1], np.int64))


def test_little_is_read_whole() -> None:
    """What takes little memory with its overhead is read whole, however few messages there are, and one byte more is
    not.
    """
    byte_count = LITTLE_BYTES - 100 * BATCH_BYTES - 1_000 * MESSAGE_BYTES
    assert reads_all(opened(100, 1_000, byte_count), 0, CACHED)
    assert not reads_all(opened(100, 1_000, byte_count + 1), 0, CACHED)
    assert reads_all(OpenBatchTotals.none(), 0, CACHED)


def test_a_good_part_is_read_whole() -> None:
    """Much is read whole where the messages can change a good part of it."""
    batches = 1_000_000
    assert reads_all(opened(batches, batches, batches), batches // GOOD_PART, CACHED)
    assert not reads_all(opened(batches, batches, batches), batches // GOOD_PART - 1, CACHED)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_more_open_is_never_read_sooner(batches: int, messages: int, size: int, arrived: int) -> None:
    """What is not read whole is not when more is open. It is as soon as there are enough messages, unless the driver
    keeps its headers.
    """
    totals = opened(batches, messages, size)
    if not reads_all(totals, arrived, CACHED):
        more = opened(batches + 1, messages + 1, size + 1)
        assert not reads_all(more, arrived, CACHED) or keeps_headers(totals, CACHED) != keeps_headers(more, CACHED)
        assert reads_all(totals, batches, CACHED) != keeps_headers(totals, CACHED)


def test_headers() -> None:
    """However many messages arrive, the messages of batches are not all read if the driver keeps the headers."""
    batches = CACHED // BATCH_BYTES
    assert keeps_headers(opened(batches, batches, LITTLE_BYTES), CACHED)
    assert not reads_all(opened(batches, batches, LITTLE_BYTES), batches, CACHED)
    assert not keeps_headers(opened(batches + 1, batches, LITTLE_BYTES), CACHED)
    assert reads_all(opened(batches + 1, batches, LITTLE_BYTES), batches, CACHED)


@given(COUNTS, COUNTS, COUNTS)
def test_driver(messages: int, open_messages: int, most: int) -> None:
    """The driver processes up to its most, new messages and a part of the open ones, and with a most of 0 no new
    one.
    """
    most = messages + open_messages // OPEN_MESSAGES
    assert fits_driver(messages, open_messages, most)
    assert not fits_driver(messages + 1, open_messages, most)
    assert not fits_driver(messages, open_messages + OPEN_MESSAGES, most)
    assert fits_driver(messages, open_messages, 0) == (most == 0)

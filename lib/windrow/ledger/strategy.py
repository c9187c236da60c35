"""Choose where the Spark engine processes a microbatch, driver or executors, and how much of the open batches it reads.

It reads all of them if they are small. Otherwise, if there are few enough, the driver keeps the headers of all open
batches and reads the messages of those that can change. If there are more, it reads all of them if many can change,
else only those that can change. The driver processes a microbatch if it has the new messages, and if these plus a
quarter of the open messages that it needs are at most `max_driver_messages`; otherwise the executors do. The history
records the choice as `processed_on`.
"""

from __future__ import annotations

from windrow.model.open_batches import OpenBatchTotals

LITTLE_BYTES = 16_000_000  # in memory
BATCH_BYTES, MESSAGE_BYTES = 400, 150  # approximate overhead in memory on top of `open_bytes`
GOOD_PART = 4  # of the open batches, one in four
# This many open messages count as one new message. On two cores, a million open messages with ten thousand new ones
# took the driver 1.4 s and the executors 4.2 s; a million new ones took the driver 11 s.
OPEN_MESSAGES = 4


def reads_all(opened: OpenBatchTotals, messages: int, max_cached_bytes: int) -> bool:
    """Tell whether a microbatch with this many messages reads all open batches."""
    batches, open_messages, size = opened.total
    little = size + batches * BATCH_BYTES + open_messages * MESSAGE_BYTES <= LITTLE_BYTES
    return little or (not keeps_headers(opened, max_cached_bytes) and messages * GOOD_PART >= batches)


def keeps_headers(opened: OpenBatchTotals, max_cached_bytes: int) -> bool:
    """Tell whether the driver keeps the headers of all open batches."""
    return opened.total[0] * BATCH_BYTES <= max_cached_bytes


def fits_driver(messages: int, open_messages: int, max_driver_messages: int) -> bool:
    """Tell whether the driver processes the new messages and those of the open batches that are read."""
    return messages + open_messages // OPEN_MESSAGES <= max_driver_messages

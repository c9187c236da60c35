"""The one rule of the Spark engine: where a microbatch is processed, and in which form it is committed.

| what is open | reads of it | is processed | is committed by |
|---|---|---|---|
| little, or a good part of it can change | all | see below | an overwrite of the live partitions |
| more | what can change | see below | a MERGE |

The driver processes when what arrived and the open batches that are read have `max_driver_messages` messages at most
and the driver has what arrived; the executors do all else. A session that takes no settings (serverless) always merges,
as an overwrite needs one. The history records both: `path` and `commit_form`.

A MERGE reads and writes only files with rows that change, and matches these rows first; an overwrite writes every live
row again, which takes half the time of a MERGE that changes most of them.
"""

from __future__ import annotations

from windrow.model.open_batches import OpenBatches

MERGE, OVERWRITE, TRANSACTION = "merge", "overwrite", "transaction"  # the last one is what the embedded engine makes
LITTLE_BYTES = 16_000_000  # in memory
BATCH_BYTES, MESSAGE_BYTES = 400, 150  # in memory, about, beside what `open_bytes` counts
GOOD_PART = 4  # one in so many


def reads_all(opened: OpenBatches, messages: int) -> bool:
    """Tell whether a microbatch with so many messages reads all open batches."""
    batches, held, size = opened.total
    return size + batches * BATCH_BYTES + held * MESSAGE_BYTES <= LITTLE_BYTES or messages * GOOD_PART >= batches


def fits_driver(messages: int, open_messages: int, max_driver_messages: int) -> bool:
    """Tell whether the driver processes so many messages, new ones and those of the open batches that are read."""
    return messages + open_messages <= max_driver_messages

"""Choose where the Spark engine processes a microbatch (driver or executors) and how it commits (MERGE or overwrite).

| open batches | of them it reads | is processed | is committed by |
|---|---|---|---|
| few, or many of which can change | all | see below | an overwrite of the live partitions |
| many, of which few can change | those that can change | see below | a MERGE |

The driver processes a microbatch if it holds the new messages and if these and the messages of the open batches that
are read are at most `max_driver_messages`; otherwise the executors do. An overwrite needs a session setting, so a
session that takes no settings (serverless) always merges. The history records both choices: `path` and `commit_form`.

A MERGE has to match rows first, but it reads and writes only files with rows that change. An overwrite writes every
live row again, which takes half the time of a MERGE that changes most of them.
"""

from __future__ import annotations

from windrow.model.open_batches import OpenBatches

MERGE, OVERWRITE = "merge", "overwrite"
LITTLE_BYTES = 16_000_000  # in memory
BATCH_BYTES, MESSAGE_BYTES = 400, 150  # approximate overhead in memory on top of `open_bytes`
GOOD_PART = 4  # of the open batches, one in four
FILE_ROWS = 20_000  # a MERGE that changes a row writes its file again


def reads_all(opened: OpenBatches, messages: int) -> bool:
    """Tell whether a microbatch with this many messages reads all open batches."""
    batches, held, size = opened.total
    return size + batches * BATCH_BYTES + held * MESSAGE_BYTES <= LITTLE_BYTES or messages * GOOD_PART >= batches


def overwrites_states(held: int, changed: int) -> bool:
    """Tell whether a commit overwrites states of a topology of which the driver knows all `held` rows.

    A MERGE would have to match them, but would leave files in which nothing changes.
    """
    return held <= max(FILE_ROWS, changed * GOOD_PART)


def fits_driver(messages: int, open_messages: int, max_driver_messages: int) -> bool:
    """Tell whether the driver processes the new messages and those of the open batches that are read."""
    return messages + open_messages <= max_driver_messages

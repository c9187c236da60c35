"""A summary of messages: how many each version and source has, and the stamps by which they move clocks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME
from windrow.model.admission import reject_inadmissible

SUMMARY = pa.schema(
    [
        ("version", pa.int64()), ("source", pa.string()), ("messages", pa.int64()), ("earliest", TIME), ("stamp", TIME),
    ]
)  # fmt: skip


def summarise_messages(messages: pa.Table, latest: int) -> pa.Table:
    """Count the rows of each (version, source), and find the first and last stamp of those that move a clock.

    `merge_summaries` merges the summaries of parts, so parts can be summarised anywhere.
    """
    refused_rows = reject_inadmissible(messages, latest)["row"].to_numpy()
    moves = np.ones(messages.num_rows, np.bool_)
    moves[refused_rows] = False
    stamp = pc.if_else(pa.array(moves), messages["received_at"].combine_chunks(), None)
    counted = pa.table(
        {
            "version": messages["version"],
            "source": messages["source"],
            "messages": np.ones(messages.num_rows, np.int64),
            "earliest": stamp,
            "stamp": stamp,
        }
    )
    return merge_summaries(counted)


def merge_summaries(summaries: pa.Table) -> pa.Table:
    """Merge the summaries of parts into one, ordered by version and source."""
    aggregates = [("messages", "sum"), ("earliest", "min"), ("stamp", "max")]
    grouped = summaries.group_by(["version", "source"]).aggregate(aggregates).rename_columns(SUMMARY.names)
    return grouped.sort_by([("version", "ascending"), ("source", "ascending")])

"""Check rejected messages: each reason must follow from the times and rules recorded with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import flags, kept, numbers
from windrow.verify.report import Difference, differing
from windrow.verify.snapshot import Snapshot

REASON = [
    "id", "reason", "missed_by_us", "clock_lead_us", "source", "key", "type", "event_time", "received_at",
    "processing_time", "microbatch",
]  # fmt: skip
PROCESSED = ("too_old", "too_futuristic", "duplicate")
STREAM_TYPE_TIME = ["source", "key", "type", "event_time"]


def check_rejections(snapshot: Snapshot) -> Iterator[Difference]:
    """Check rejections by their own columns and the batches, without deriving windows."""
    yield from _processed(snapshot)
    yield from _off_by(snapshot)
    yield from _duplicates(snapshot)


def _processed(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that a message refused by a rule has a processing time, not before it was received."""
    rejected = snapshot.rejected
    never = ~flags(pc.is_in(rejected["reason"], pa.array(PROCESSED)))
    raised = numbers(rejected["processing_time"]) - numbers(rejected["received_at"])
    says = (numbers(rejected["clock_lead_us"]) == raised) & (raised >= 0)
    unsaid = pc.is_null(rejected["processing_time"]).to_numpy() & pc.is_null(rejected["clock_lead_us"]).to_numpy()
    right = pc.is_valid(rejected["reason"]).to_numpy() & np.where(never, unsaid, says)
    rows = kept(rejected, ~right, REASON)
    expected = "a reason, and a processing time not before received_at"
    yield from differing("rejections", expected, rows, "rejections")


def _off_by(snapshot: Snapshot) -> Iterator[Difference]:
    """Check `missed_by_us`: how far before processing time - max_delay, or after processing time + max_leap."""
    rejected = snapshot.rejected
    microbatch = numbers(rejected["microbatch"])
    delay = snapshot.of_microbatch(snapshot.rules("max_delay"), microbatch)
    leap = snapshot.of_microbatch(snapshot.rules("max_leap"), microbatch)
    ahead = numbers(rejected["event_time"]) - numbers(rejected["processing_time"])
    off_by = numbers(rejected["missed_by_us"])
    for reason, beyond in (("too_old", -ahead - delay), ("too_futuristic", ahead - leap)):
        concerned = flags(pc.equal(rejected["reason"], reason))
        rows = kept(rejected, concerned & ~((off_by == beyond) & (beyond > 0)), REASON)
        yield from differing(reason, "missed_by_us as times and rules say, above 0", rows, "rejections")


def _duplicates(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that the message before a duplicate is in a batch."""
    rejected = snapshot.rejected.filter(pc.equal(snapshot.rejected["reason"], "duplicate")).select(REASON)
    accepted = snapshot.messages.select(STREAM_TYPE_TIME)
    rows = rejected.join(accepted, STREAM_TYPE_TIME, join_type="left anti")
    expected = "a message of the same stream, type and event time in a batch"
    yield from differing("duplicate", expected, rows, "rejections")

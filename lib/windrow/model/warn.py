"""The limits of what a ledger may look like before Windrow warns."""

from __future__ import annotations

from pydantic import Field

from windrow.model.section import Count, Part, Share

# Guesses, tried on fleets with one fault each: more is what an operator would want to change.
SPLIT_SHARE = 0.5  # of all batches, those opened because a type came again
SLIVER_SHARE = 0.2  # of the closed batches, those with few messages for their stream
REJECTED_SHARE = 0.9  # of the messages of a source, those too old or too futuristic


class WarnPart(Part):
    """`[warn]`: from which share on `status`, `run`, `doctor` and `check` warn; 1: never."""

    least: Count = Field(100, description="fewer batches or messages are no reason for a warning")
    late_share: Share = Field(0.01, description="of all messages, those that were too old")

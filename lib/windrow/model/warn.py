"""The limits of what a ledger may look like before Windrow warns."""

from __future__ import annotations

from pydantic import Field

from windrow.model.section import Count, Part, Share


class WarnPart(Part):
    """`[warn]`: from which share on `status`, `run`, `doctor` and `check` warn; 1: never."""

    least: Count = Field(100, description="fewer batches or messages are no reason for a warning")
    split_share: Share = Field(0.5, description="of all batches, those opened because a type came again")
    sliver_share: Share = Field(0.2, description="of the closed batches, those with few messages for their stream")
    rejected_share: Share = Field(0.9, description="of the messages of a source, those too old or too futuristic")
    late_share: Share = Field(0.01, description="of all messages, those that were too old")

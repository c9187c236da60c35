"""What the chunks of a raw depot give beside messages."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Formatted:
    """Rejections of the format, as the ledger has them, with the `version` in which each was known; partial rows.

    `bytes` has of each version that has chunks how many bytes those are, NULL where a codec decodes them.
    """

    rejected: pa.Table
    partial: pa.Table
    byte_count: pa.Table

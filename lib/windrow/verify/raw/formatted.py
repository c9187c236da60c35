"""What the chunks of a raw depot give besides messages."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Formatted:
    """Rejections of the format, as the ledger has them, with the `version` that decided each, and partial rows.

    `byte_count` has `version, bytes` for each version with chunks; NULL where a codec decodes them.
    """

    rejected: pa.Table
    partial: pa.Table
    byte_count: pa.Table

"""Draw pictures of batches and messages with altair. Importing it raises MissingExtraError where altair is missing."""

from __future__ import annotations

from windrow.reading.plot.extra import require

require("altair")

from windrow.reading.plot.batches import batches  # noqa: E402 - it imports altair
from windrow.reading.plot.microbatches import microbatches  # noqa: E402
from windrow.reading.plot.theme import require_picture, save  # noqa: E402
from windrow.reading.plot.timeline import MAX_LINES, timeline  # noqa: E402
from windrow.reading.plot.tuning import tuning  # noqa: E402

__all__ = [
    "MAX_LINES", "batches", "microbatches", "require_picture", "save", "timeline", "tuning",
]  # fmt: skip

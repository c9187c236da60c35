"""Draw pictures of batches and messages in Vega-Lite; altair validates and saves them."""

from __future__ import annotations

from windrow.reading.plot.batches import batches
from windrow.reading.plot.microbatches import microbatches
from windrow.reading.plot.theme import require_picture, save
from windrow.reading.plot.timeline import MOST_LINES, busiest_rejections, timeline
from windrow.reading.plot.tuning import tuning

__all__ = [
    "MOST_LINES",
    "batches",
    "busiest_rejections",
    "microbatches",
    "require_picture",
    "save",
    "timeline",
    "tuning",
]

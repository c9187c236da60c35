"""Pictures of what was batched, in Vega-Lite; altair checks and saves them."""

from __future__ import annotations

from windrow.plot.files import require_picture, save
from windrow.plot.timeline import MOST_LINES, busiest_rejections, timeline

__all__ = ["MOST_LINES", "busiest_rejections", "require_picture", "save", "timeline"]

"""Write what `status`, `doctor`, `show` and `plot` say about a ledger to one self-contained HTML page.

The page has no script, and its policy lets a browser neither run nor load anything. Templates escape all text from
data.
"""

from __future__ import annotations

from windrow.report.contents import Report, batcher_report, topology_report
from windrow.report.page import html, require_page, save

__all__ = ["Report", "batcher_report", "html", "require_page", "save", "topology_report"]

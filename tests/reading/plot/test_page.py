"""The pictures of the pages are there and small."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
LARGEST = 200_000


def test_pictures_are_there_and_small() -> None:
    """Each picture of the pages is in the repository and small, and none is there that no page shows."""
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("pictures.md", "report.md", "performance.md")]
    shown = {DOCS / name for page in pages for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)}
    assert shown == set((DOCS / "pictures").glob("*.png"))
    assert all(picture.stat().st_size < LARGEST for picture in shown)

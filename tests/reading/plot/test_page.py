"""docs/pictures.md: its pictures are there and small."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
LARGEST = 200_000


def test_pictures_are_there_and_small() -> None:
    """Each picture of the page is in the repository and small, and none is there that the page does not show."""
    page = (DOCS / "pictures.md").read_text(encoding="utf-8")
    shown = {DOCS / name for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)}
    assert shown == set((DOCS / "pictures").glob("*.png"))
    assert all(picture.stat().st_size < LARGEST for picture in shown)

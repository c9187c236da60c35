"""docs/pictures.md: its pictures are there and small, its commands and its Python run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Command, publish, windrow  # noqa: F401 - a fixture
from tests.messages import SECOND, message

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "pictures.md").read_text(encoding="utf-8")
AT = 1_795_240_520 * SECOND  # within the stretch that the page draws
LARGEST = 200_000


@pytest.fixture
def demo(windrow: Command, tmp_path: Path) -> Command:  # noqa: F811 - the fixture
    """A ledger at demo/ledger with messages of edge-c."""
    publish(
        tmp_path, *(message(kind, AT + at * SECOND, AT + at * SECOND, key="edge-c") for kind in "ab" for at in (0, 9))
    )
    (tmp_path / "windrow.toml").write_text('depot = "demo/depot"\nledger = "demo/ledger"\nidle_grace = "never"\n')
    assert windrow("ingest", "messages.parquet").status == 0
    assert windrow("run").status == 0
    return windrow


def test_pictures_are_there_and_small() -> None:
    """
    Each picture of the page is in the repository and small, and none is there that the page does not show.
    """
    shown = {DOCS / name for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE)}
    assert shown == set((DOCS / "pictures").glob("*.png"))
    assert all(picture.stat().st_size < LARGEST for picture in shown)


def test_commands(demo: Command) -> None:
    """
    Every command of the page draws a picture.
    """
    pytest.importorskip("altair")
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) == 3
    for line in lines:
        said = demo(*shlex.split(line)[1:])
        assert said.status == 0, f"{line}: {said.err}"
        assert Path(line.split()[-1]).stat().st_size > 0


def test_python(demo: Command) -> None:
    """
    The Python of the page runs as it stands and writes its three pictures.
    """
    pytest.importorskip("altair")
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    exec(block, {})  # noqa: S102 - our own page
    assert all(Path(name).stat().st_size for name in ("batches.html", "microbatches.png", "timeline.svg"))

"""Every code block of the README and of docs/ is run, or says in the page why it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.docs import results, worlds
from tests.docs.following import Following
from tests.docs.pages import ROOT, Page, pages

MAX_NOT_RUN = 14
LONG = ("docs/pictures.md", "docs/tutorial.md")  # tests/reading/plot draws too, tests/cli runs the commands
FIRST_WITH_SPARK = ("README.md",)  # the others with Spark are slow


def with_blocks() -> list[Any]:
    """Return the pages that have blocks; those whose blocks ask for Spark are marked so."""
    return [pytest.param(page, id=page.path, marks=marks_of(page)) for page in pages() if page.blocks]


def marks_of(page: Page) -> list[pytest.MarkDecorator]:
    """Return what a page asks for: Spark, or time. `make test` runs the README."""
    if page.path in LONG:
        return [pytest.mark.slow]
    if not any(block.needs_spark for block in page.blocks):
        return [pytest.mark.ci]
    return [pytest.mark.spark] if page.path in FIRST_WITH_SPARK else [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("page", with_blocks())
def test_page(
    page: Page,
    windrow: Command,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    made: Callable[[str], Path],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The blocks of a page run one after the other, and its queries give the tables that it shows."""
    monkeypatch.syspath_prepend(tmp_path)  # where Python looks for the modules of a page
    worlds.prepare(page.world, tmp_path, made)
    following = Following(windrow, capfd, lambda: request.getfixturevalue("spark"))
    for block in page.blocks:
        following.follow(block)
    if results.WRITE:
        results.write(page.path, following.found)
        return
    for table, result in following.found:
        assert table.lines == result, f"{page.path}:{table.start}: the result is another; make reference writes it"


def test_what_runs_elsewhere() -> None:
    """A test that a page names for some of its blocks is there and reads the page, and the page has such blocks."""
    for page in pages():
        languages = {block.language for block in page.every_block}
        for language, file in page.elsewhere.items():
            assert language in languages, f"{page.path} has no block of {language}"
            assert Path(page.path).name in (ROOT / file).read_text(encoding="utf-8"), f"{file} reads no {page.path}"


def test_few_are_not_run() -> None:
    """Blocks that are not run are few."""
    left = [block.place for page in pages() for block in page.blocks if not block.is_run]
    assert len(left) <= MAX_NOT_RUN, left

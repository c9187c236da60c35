"""The pages in Chromium, with clicks: `make test-browser`, which installs what drives it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, message
from tests.ui.browsing import Browsing, served
from tests.ui.test_server import HOSTILE, fill, fill_with_a_million
from windrow.report import batcher_report, save
from windrow.ui import BatcherView

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (400, 900, 1_600)
EXPECTED = ("status of 4", "ERR_CONNECTION_REFUSED")  # what a page without a server or ledger complains of
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    assert CHROMIUM is not None, "Install Chromium: apt-get install chromium."
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page, on which an error of a script, or what the policy refuses, fails the test."""
    opened = browser.new_page()
    opened.set_default_timeout(20_000)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    yield opened
    opened.close()
    assert [error for error in errors if not any(part in error for part in EXPECTED)] == []


@pytest.fixture
def browsing(world: World, embedded: EngineFactory, no_pictures: None) -> Iterator[Browsing]:
    """A server that allows changes and reads anew each half second."""
    settings = world.settings(embedded)
    view = BatcherView(lambda: nullcontext(settings), lambda: settings)
    with served(view, interval=0.5, allow_changes=True) as asks:
        yield asks


def address(browsing: Browsing) -> str:
    """Return the address as it is printed, its space escaped."""
    return browsing.access.address.replace(" ", "+")


def width_needed(page: Page) -> int:
    """Return how wide the page is, what scrolls inside it left out."""
    return int(page.evaluate("document.documentElement.scrollWidth"))


def test_path(world: World, embedded: EngineFactory, browsing: Browsing, page: Page) -> None:
    """From the printed address to a stream, a batch, a message and back, by clicks alone."""
    fill(world, embedded)
    page.goto(address(browsing))
    assert "secret" not in page.url
    page.get_by_label("source").nth(1).fill("pump")
    page.get_by_role("button", name="Show stream").click()
    page.locator("#closed a").click()
    page.locator("#messages a").click()
    assert page.locator("#fate tbody tr").first.inner_text().startswith("closed")
    page.get_by_role("link", name="Back to the report").click()
    assert page.locator("#sources").is_visible()


@pytest.mark.slow
def test_million_batches(world: World, embedded: EngineFactory, browsing: Browsing, page: Page) -> None:
    """With a million batches of a thousand sources the page fits, and clicks lead to a batch and a message."""
    fill_with_a_million(world, embedded)
    page.set_default_timeout(60_000)
    page.goto(address(browsing))
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert width_needed(page) <= width
    page.locator("#sources", has_text="device-7").wait_for()
    page.get_by_label("source").nth(1).fill("device-7")
    page.get_by_role("button", name="Show stream").click()
    page.locator("#closed a").first.click()
    page.locator("#messages a").first.click()
    assert page.locator("#fate tbody tr").first.inner_text().startswith("closed")


def test_trace(world: World, embedded: EngineFactory, browsing: Browsing, page: Page) -> None:
    """The form traces a message; what is not there is said."""
    fill(world, embedded)
    page.goto(address(browsing))
    form = page.locator("form[action='/message']")
    form.get_by_label("key").fill("nobody")
    form.get_by_label("event time").fill("2026-01-31T12:00:07Z")
    form.get_by_role("button").click()
    assert "nobody" in page.locator("#verdict").inner_text()


def test_lives(world: World, embedded: EngineFactory, browsing: Browsing, page: Page) -> None:
    """The page renews itself: first no ledger, then a ledger, then another batch; what was unfolded stays so."""
    page.goto(address(browsing))
    assert "no ledger" in page.locator("#verdict").inner_text().lower()
    fill(world, embedded)
    page.locator("#sources", has_text="pump").wait_for()
    page.locator("#checks summary").click()
    fill(world, embedded, "other")
    page.locator("#sources", has_text="other").wait_for()
    assert page.locator("#checks details").get_attribute("open") is not None


def test_typing(world: World, embedded: EngineFactory, browsing: Browsing, page: Page) -> None:
    """What one types stays while the page renews itself."""
    fill(world, embedded)
    page.goto(address(browsing))
    field = page.locator("form[action='/stream']").get_by_label("key")
    field.fill("half a ke")
    fill(world, embedded, "other")
    page.locator("#sources", has_text="other").wait_for()
    assert field.input_value() == "half a ke"


def test_pause(world: World, embedded: EngineFactory, browsing: Browsing, page: Page) -> None:
    """The buttons pause and resume."""
    fill(world, embedded)
    page.goto(address(browsing))
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for()
    assert world.kinds()[-2:] == ["pause", "resume"]


def test_server_ends(world: World, embedded: EngineFactory, page: Page, no_pictures: None) -> None:
    """When the server has ended the page says that it is not renewed any more."""
    fill(world, embedded)
    settings = world.settings(embedded)
    with served(BatcherView(lambda: nullcontext(settings), lambda: settings), interval=0.5) as asks:
        page.goto(address(asks))
    page.locator("#state", has_text="Not refreshed").wait_for()
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits(world: World, embedded: EngineFactory, browsing: Browsing, page: Page, width: int, scheme: str) -> None:
    """200 sources, of which one has a long and hostile name, fit on a telephone and on a large screen."""
    rows = [message("a", NOW, NOW, source=f"pump-{number:03}") for number in range(199)]
    world.publish([*rows, message("a", NOW, NOW, source=HOSTILE + "x" * 500)])
    world.runner(embedded).once()
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address(browsing))
    assert page.locator("#sources summary").inner_text() == "188 more"
    assert width_needed(page) <= width
    page.goto(f"{page.url}stream?source=pump-007")
    assert page.locator("#open a").is_visible()
    assert width_needed(page) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_report_fits(world: World, embedded: EngineFactory, tmp_path: Path, page: Page, width: int) -> None:
    """The page of `windrow report`, opened as a file, fits too and runs no script."""
    fill(world, embedded, HOSTILE)
    save(batcher_report(world.settings(embedded), NOW + 60 * SECOND), tmp_path / "report.html")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"file://{tmp_path}/report.html")
    assert page.locator("#pictures img").count() == 3
    assert page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
    assert width_needed(page) <= width

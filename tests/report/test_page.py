"""The page of a batcher: each section, hostile names, no messages, many sources, no pictures."""

from __future__ import annotations

import base64
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import HOUR, SECOND, Row, message
from tests.report.parsed import ParsedPage, parsed
from windrow.errors import MissingExtraError, SettingsError
from windrow.model.printable import printable
from windrow.model.timestamps import time_text
from windrow.reading import alarms
from windrow.reading.plot import extra
from windrow.report import Report, batcher_report, page, save

MINUTE = 60 * SECOND
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "</style></section></table>",
    "\"'><b onclick='x'>quotes",
    "bell\x07 escape\x1b[31m null\x00",
    "\u202egnp.exe",
    "\u0645\u0631\u062d\u0628\u0627",
    "{{ 7 * 7 }}{% raw %}",
    "a&amp;b &lt;i&gt;",
    "`tick`",
    "line\nfeed\ttab",
    "\ufeffmark\u2028line",
]
LONG = "x" * 5_000
Reported = Callable[..., ParsedPage]


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """An empty depot and a ledger that does not exist yet."""
    return World(tmp_path, clock)


@pytest.fixture
def reported(
    world: World, embedded: EngineFactory, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Reported:
    """Return what reads the report of the world, writes it and parses it, without pictures, which take seconds."""
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == "vl_convert" else find_spec(name))

    def read(*conditions: str) -> ParsedPage:
        report = of(world, embedded, clock, *conditions)
        assert save(report, tmp_path / "r.html") == (tmp_path / "r.html").stat().st_size
        return parsed(tmp_path / "r.html")

    return read


def of(world: World, embedded: EngineFactory, clock: ManualClock, *conditions: str) -> Report:
    """Read the report of a world."""
    return batcher_report(world.settings(embedded), clock.now(), [alarms.parse(text) for text in conditions])


def rounds(
    world: World, embedded: EngineFactory, sources: list[str], count: int, wrong: str = "", last: int = 0
) -> None:
    """Publish a version a minute, with a message of each source, and run unless it is among the `last`.

    From the third minute on the clock of `wrong` is two hours behind, and it sends 20 times as much.
    """
    for number in range(count):
        at = NOW + number * MINUTE
        world.clock.set(at + 10 * SECOND)
        rows: list[Row] = []
        for source in sources:
            off, sent = (2 * HOUR, 20) if source == wrong and number > 1 else (0, 1)
            times = [at + place * SECOND // 10 for place in range(sent)]
            rows += [message("a", time - off, time + SECOND, source=source, key=f"{source} key") for time in times]
        world.publish(rows)
        if number < count - last:
            world.runner(embedded).once()


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> ParsedPage:
    """The page about three sources, of which one has a wrong clock; a version waits, and an alarm holds."""
    root, clock, embedded = tmp_path_factory.mktemp("troubled"), ManualClock(), EngineFactory("embedded")
    world = World(root, clock)
    rounds(world, embedded, ["pump-1", "pump-2", "pump-3"], 30, wrong="pump-2", last=1)
    save(of(world, embedded, clock, "lag_messages>10", "rejected>100000"), root / "r.html")
    return parsed(root / "r.html")


class TestSections:
    def test_verdict(self, troubled: ParsedPage) -> None:
        """On top are the alarm that holds, which source is wrong, why, since when, what to do, and what waits."""
        text = troubled.text("verdict")
        assert text.startswith("1 alarm, ")
        assert "lag_messages>10 holds: lag_messages is 22" in text
        assert "rejected>100000" not in text
        assert "nearly all messages of 'pump-2' (540 of 542, 2 h behind) were rejected" in text
        assert f"since {minute_text(NOW + 3 * MINUTE)}" in text  # 5 % came before
        assert "[depot.columns]" in text
        assert "22 messages in 1 version wait" in text
        order = [text.index(word) for word in ("lag_messages>10", "nearly all messages", "22 messages in 1 version")]
        assert order == sorted(order)

    def test_figures(self, troubled: ParsedPage) -> None:
        """The figures are those of the status."""
        text = troubled.text("figures")
        for figure in ("messages read 600", "in batches 60", "rejected 540", "waiting to be read 22"):
            assert figure in text

    def test_rejections(self, troubled: ParsedPage) -> None:
        """The table names the source, its share, the reason with the offset, the time, and what would have kept it."""
        [row] = [row for row in troubled.rows["rejections"] if row[0] == "pump-2"]
        assert row[1:3] == ["540 of 542 (100 %)", "too_old (2 h behind)"]
        assert row[3].startswith(minute_text(NOW + 3 * MINUTE))
        assert 'max_delay = "2h' in troubled.text("rejections")
        bars = [attributes for tag, attributes in troubled.tags if tag == "rect"]
        assert 10 < len(bars) < 24  # in the first minutes nothing was rejected

    def test_other_tables(self, troubled: ParsedPage) -> None:
        """Clocks, open batches with their reasons, microbatches with phases, tables, checks and rules are there."""
        assert sorted(troubled.column("sources", 0)) == ["pump-1", "pump-2", "pump-3"]
        assert troubled.column("sources", 5).count("0") == 2
        assert "it waits for" in troubled.text("open")
        assert "it closes with the first message of its source" in troubled.text("open")
        assert troubled.column("microbatches", 0) == [str(number) for number in range(29, 0, -1)]
        heads = troubled.rows["microbatches"][0]
        assert [head for head in heads if head.endswith("(ms)")] == [
            "prime (ms)",
            "plan (ms)",
            "process (ms)",
            "commit (ms)",
        ]
        assert troubled.column("tables", 3) == ["29", ""]
        assert "ledger-books" in troubled.column("checks", 2)
        assert ["max_delay", "5s"] in troubled.rows["rules"]

    def test_pictures(self, troubled: ParsedPage) -> None:
        """The three pictures are images inside the page, of the source that is wrong."""
        pytest.importorskip("altair")
        images = [svg(address) for address in troubled.images()]
        assert len(images) == 3
        assert "pump-2" in images[0]
        assert "Wait until closed" in images[1]
        assert "How long a microbatch took" in images[2]
        assert "windrow plot --source pump-2 --out timeline.html" in troubled.text("pictures")


def minute_text(at: int) -> str:
    """Return the minute of a time as the page shows it."""
    return time_text(at)[:16].replace("T", " ")


def svg(address: str) -> str:
    """Return the picture in the address of an image."""
    kind, content = address.split(",")
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(content).decode()


class TestHostile:
    def test_escaped(self, world: World, embedded: EngineFactory, clock: ManualClock, tmp_path: Path) -> None:
        """Names are shown as they are, with escapes for what steers, and none becomes a tag, an attribute or code."""
        rounds(world, embedded, HOSTILE, 3)
        late = [message("late", NOW - HOUR, NOW + MINUTE, source=name, key=name) for name in HOSTILE]
        world.publish(late)
        world.runner(embedded).once()
        save(of(world, embedded, clock), tmp_path / "r.html")
        page = parsed(tmp_path / "r.html")
        shown = {printable(name) for name in HOSTILE}
        assert {text.replace("\\n", "\n") for text in page.column("sources", 0)} == {name.strip() for name in shown}
        assert set(page.column("rejections", 0)) >= {name.strip() for name in shown}
        assert harmless(page)

    def test_long(self, world: World, embedded: EngineFactory, reported: Reported) -> None:
        """A very long name is cut, with its length."""
        rounds(world, embedded, [LONG], 2)
        page = reported()
        assert page.column("sources", 0) == [f"{'x' * 150}... (5,000 characters)"]
        assert page.column("open", 1) == [f"{'x' * 150}... (5,004 characters)"]


def harmless(page: ParsedPage) -> bool:
    """Tell whether nothing in a page runs, or is loaded from elsewhere, and a policy forbids both."""
    policies = [attributes for tag, attributes in page.tags if "http-equiv" in attributes]
    known = {
        "html", "head", "meta", "title", "style", "body", "header", "h1", "bdi", "p", "nav", "a", "code", "main",
        "section", "h2", "article", "span", "div", "strong", "table", "thead", "tr", "th", "tbody", "td", "svg", "rect",
        "details", "summary", "figure", "figcaption", "img", "footer",
    }  # fmt: skip
    assert {tag for tag, _ in page.tags} <= known
    assert policies[0]["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert (attributes.get("src") or "data:").startswith("data:")
    return True


def test_empty(world: World, embedded: EngineFactory, reported: Reported) -> None:
    """The page about a ledger that read nothing says so in each section."""
    world.runner(embedded).once()
    page = reported()
    assert "No message was rejected." in page.text("rejections")
    assert "No batch is open." in page.text("open")
    assert "Nothing ran yet." in page.text("microbatches")
    assert "messages read 0" in page.text("figures")
    assert page.images() == []


def test_paused(world: World, embedded: EngineFactory, reported: Reported) -> None:
    """A paused ledger is a warning, with the time of the pause."""
    rounds(world, embedded, ["a"], 1)
    world.clock.set(NOW + HOUR)
    world.runner(embedded).pause()
    text = reported().text("verdict")
    assert "the ledger is paused: nothing is read" in text
    assert f"since {minute_text(NOW + HOUR)}" in text


def test_many_sources(world: World, embedded: EngineFactory, reported: Reported, tmp_path: Path) -> None:
    """With 400 sources, all of which had a message rejected, the page stays below a megabyte and shows the worst."""
    sources = [f"pump-{number:03}" for number in range(400)]
    rounds(world, embedded, sources, 2)
    world.publish([message("late", NOW - HOUR, NOW + MINUTE, source=name) for name in sources])
    world.runner(embedded).once()
    page = reported()
    assert (tmp_path / "r.html").stat().st_size < 1_000_000
    assert len(page.column("sources", 0)) == 300
    assert page.column("sources", 5) == ["1"] * 300
    assert "100 more are left out" in page.text("sources")
    assert "300 more pairs of source and reason are left out" in page.text("rejections")


class TestExtras:
    def test_no_pictures(self, world: World, embedded: EngineFactory, reported: Reported) -> None:
        """Without the packages that draw, a sentence in place of the pictures names the extra."""
        rounds(world, embedded, ["a"], 1)
        page = reported()
        assert "windrow-delta[plot]" in page.text("pictures")
        assert page.images() == []

    def test_no_templates(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without jinja2 the error names the extra."""
        monkeypatch.setattr(page, "find_spec", lambda name: None)
        with pytest.raises(MissingExtraError, match=r"reports need jinja2") as missing:
            page.require_page(tmp_path / "r.html")
        assert "windrow-delta[report]" in missing.value.hint

    @pytest.mark.parametrize(("name", "says"), [("r.pdf", "is not an .html file"), ("no/r.html", "cannot be")])
    def test_places(self, name: str, says: str, tmp_path: Path) -> None:
        """A file that cannot be a page or be written is wrong usage."""
        report = Report("ledger", "2026-01-31T12:00:00Z", [], [], [], "", [])
        with pytest.raises(SettingsError, match=says):
            save(report, tmp_path / name)

"""The pages as a browser gets them: report, stream, batch, message, changes, errors, hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

import windrow
from benchmarks.peers import inputs
from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, message
from tests.ui.browsing import SECRET, Answer, Browsing, served
from windrow import reading
from windrow.errors import SettingsError
from windrow.model.messages import COLUMNS
from windrow.model.printable import printable
from windrow.model.timestamps import time_text
from windrow.ui import BatcherView, Server

pytestmark = pytest.mark.usefixtures("no_pictures")
HOSTILE = "<script>alert(1)</script>'\"&a=1#b\u202e{{ 7*7 }}"


@pytest.fixture
def view(world: World, embedded: EngineFactory) -> BatcherView:
    """The batcher of the world."""
    return BatcherView(lambda: nullcontext(world.settings(embedded)), lambda: world.settings(embedded))


@pytest.fixture
def browsing(view: BatcherView) -> Iterator[Browsing]:
    """What asks a server that allows changes."""
    with served(view, allow_changes=True) as asks:
        yield asks


def fill(world: World, embedded: EngineFactory, source: str = "pump", count: int = 2) -> None:
    """Batch `count` messages of a source, a minute apart, and one that is too old."""
    times = [NOW + number * 60 * SECOND for number in range(count)]
    rows = [message("a", at, at, source=source, key=f"{source} key") for at in times]
    world.publish(rows, [message("late", NOW - 3_600 * SECOND, times[-1], source=source, key=f"{source} key")])
    world.runner(embedded).once()


def fill_with_a_million(world: World, embedded: EngineFactory) -> None:
    """Batch a million messages of a thousand sources, each in a batch of its own."""
    messages = inputs.generated(1_010_000, keys=1_000, types=1)
    messages = messages.append_column("sequence", pa.nulls(messages.num_rows, pa.int64()))
    inputs.write(Path(world.depot), messages.select(list(COLUMNS)), 10)
    rules = {"window": "600ms", "max_delay": "100ms", "max_lead": "400ms"}
    windrow.run(world.settings(embedded, rules=rules))


class TestReport:
    def test_enters(self, world: World, embedded: EngineFactory, browsing: Browsing) -> None:
        """The address with the secret leads to the report and leaves a cookie that scripts cannot read."""
        fill(world, embedded)
        entered = browsing.send("GET", f"/?secret={SECRET.replace(' ', '+')}", Cookie="")
        assert (entered.status, entered.headers["location"]) == (303, "/")
        assert "HttpOnly" in entered.headers["set-cookie"]
        answer = browsing.get("/")
        assert answer.status == 200
        assert answer.page.column("sources", 0) == ["pump"]
        assert answer.headers["cache-control"] == "no-store"

    @pytest.mark.parametrize("path", ["/", "/stream", "/batch?id=x", "/message", "/live.js"])
    def test_no_secret(self, browsing: Browsing, path: str) -> None:
        """Without cookie every page is refused, and says what to do."""
        refused = browsing.send("GET", path, Cookie="")
        assert refused.status == 403
        assert "windrow ui" in refused.text

    def test_no_ledger(self, world: World, embedded: EngineFactory, browsing: Browsing) -> None:
        """Before there is a ledger the page says so, and goes on looking; then it shows the ledger."""
        missing = browsing.get("/")
        assert missing.status == 404
        assert "--ledger" in missing.page.text("verdict")
        assert "/live.js" in missing.text
        fill(world, embedded)
        assert browsing.get("/").status == 200

    @pytest.mark.slow
    def test_million_batches(self, world: World, embedded: EngineFactory, browsing: Browsing) -> None:
        """The pages of a ledger with a million batches show the newest ones, and are no longer for the others."""
        fill_with_a_million(world, embedded)
        report, stream = browsing.get("/"), browsing.get("/stream", source="device-7")
        batch = browsing.get(next(link for link in links(stream) if link.startswith("/batch")))
        assert [page.status for page in (report, stream, batch)] == [200, 200, 200]
        assert max(len(page.text) for page in (report, stream, batch)) < 300_000  # a line for each source
        assert len(stream.page.column("closed", 0)) == 20
        assert reading.status(world.depot, world.ledger, NOW).closed.batch_count > 900_000

    def test_source(self, world: World, embedded: EngineFactory, browsing: Browsing) -> None:
        """A source can be picked: its open batches are shown, those of others are not."""
        fill(world, embedded, "a")
        fill(world, embedded, "b")
        assert sorted(browsing.get("/").page.column("open", 0)) == ["a", "b"]
        picked = browsing.get("/", source="b")
        assert picked.page.column("open", 0) == ["b"]
        assert ("option", {"value": "b", "selected": None}) in picked.page.tags

    def test_interval(self, world: World, embedded: EngineFactory, view: BatcherView) -> None:
        """Within the interval the report is not read again."""
        fill(world, embedded)
        with served(view, interval=3_600) as asks:
            first = asks.get("/").text
            fill(world, embedded, "other")
            assert asks.get("/").text == first


class TestPages:
    def test_path(self, world: World, embedded: EngineFactory, browsing: Browsing) -> None:
        """Links lead from a stream to its batches, from a batch to its messages, and from a message to its batch."""
        fill(world, embedded)
        stream = browsing.get("/stream", source="pump", key="pump key")
        assert [len(stream.page.column(name, 0)) for name in ("open", "closed", "rejected")] == [1, 1, 1]
        [batch] = [link for link in links(stream) if link.startswith("/batch")][1:]
        shown = browsing.send("GET", batch)
        assert ["state", "closed"] in shown.page.rows["batch"]
        [traced] = [link for link in links(shown) if link.startswith("/message")]
        fate = browsing.send("GET", traced)
        assert fate.page.column("fate", 0) == ["closed"]
        assert batch in links(fate)

    def test_rejected(self, world: World, embedded: EngineFactory, browsing: Browsing) -> None:
        """A rejected message says why, and what would have kept it."""
        fill(world, embedded)
        fate = browsing.get("/message", key="pump key", event_time=time_text(NOW - 3_600 * SECOND))
        assert "too_old: " in fate.page.text("fate")
        assert "max_delay" in fate.page.text("fate")

    @pytest.mark.parametrize(
        ("path", "asked", "status", "says"),
        [
            ("/message", {"key": "pump key"}, 400, "identified by its key and event time"),
            ("/message", {"key": "pump key", "event_time": "yesterday"}, 400, "yesterday"),
            ("/message", {"key": "nobody", "event_time": "2026-01-31T12:00:07Z"}, 404, "nobody"),
            ("/batch", {"id": "x"}, 404, "not the id of a batch"),
            ("/batch", {}, 404, "not the id of a batch"),
        ],
    )
    def test_wrong(
        self,
        world: World,
        embedded: EngineFactory,
        browsing: Browsing,
        path: str,
        asked: dict[str, str],
        status: int,
        says: str,
    ) -> None:
        """What is not there, and what is asked in a wrong way, is said on a page."""
        fill(world, embedded)
        answer = browsing.get(path, **asked)
        assert (answer.status, says in answer.page.text("verdict")) == (status, True), answer.text

    def test_hostile_names(self, world: World, embedded: EngineFactory, browsing: Browsing) -> None:
        """Names are text on every page, and links with them lead to them."""
        fill(world, embedded, HOSTILE)
        stream = browsing.get("/stream", source=HOSTILE)
        [batch, *_] = [link for link in links(stream) if link.startswith("/batch")]
        shown = browsing.send("GET", batch)
        [traced] = [link for link in links(shown) if link.startswith("/message")]
        assert parse_qs(urlsplit(traced).query)["source"] == [HOSTILE]
        pages = [browsing.get("/", source=HOSTILE), stream, shown, browsing.send("GET", traced)]
        assert [answer.status for answer in pages] == [200] * 4
        for answer in pages:
            assert {(tag, values.get("src")) for tag, values in answer.page.tags if tag == "script"} <= {
                ("script", "/live.js")
            }
            assert printable(HOSTILE) in " ".join(map(" ".join, answer.page.texts.values()))
            assert "\u202e" not in " ".join(map(" ".join, answer.page.texts.values()))
        assert ("option", {"value": HOSTILE, "selected": None}) in pages[0].page.tags


class TestChanges:
    def test_pause(self, world: World, embedded: EngineFactory, browsing: Browsing) -> None:
        """The button pauses: a run does nothing until the other button is used; the history has both."""
        fill(world, embedded)
        assert "Resume" not in browsing.get("/").text
        assert browsing.post("/pause").status == 303
        assert "Resume" in browsing.get("/").text
        assert world.runner(embedded).once().paused
        assert browsing.post("/resume").status == 303
        assert world.kinds()[-2:] == ["pause", "resume"]

    def test_read_only(self, world: World, embedded: EngineFactory, view: BatcherView) -> None:
        """Unless changes are allowed there is no button, and who sends the form all the same changes nothing."""
        fill(world, embedded)
        kinds = world.kinds()
        with served(view) as asks:
            assert "<button>Pause" not in asks.get("/").text
            assert asks.post("/pause").status == 403
        assert world.kinds() == kinds

    @pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Origin": ""}, {"Cookie": ""}])
    def test_forged(self, world: World, embedded: EngineFactory, browsing: Browsing, headers: dict[str, str]) -> None:
        """A form of another page, or without the secret, changes nothing."""
        fill(world, embedded)
        kinds = world.kinds()
        assert browsing.send("POST", "/pause", **headers).status == 403
        assert world.kinds() == kinds

    def test_option(self, world: World, embedded: EngineFactory, browsing: Browsing) -> None:
        """A batcher has no options: the form of a topology leads nowhere, and writes nothing."""
        fill(world, embedded)
        kinds = world.kinds()
        assert browsing.post("/option", name="max_messages", value="7").status == 404
        assert world.kinds() == kinds

    def test_too_long(self, browsing: Browsing) -> None:
        """A form that nobody fills in by hand is refused."""
        assert browsing.post("/pause", value="x" * 20_000).status == 413

    @pytest.mark.parametrize(("method", "path", "status"), [("GET", "/pause", 405), ("GET", "/other", 404)])
    def test_other_addresses(self, browsing: Browsing, method: str, path: str, status: int) -> None:
        """A change needs a form; other addresses lead nowhere."""
        assert browsing.send(method, path).status == status


def test_port_in_use(view: BatcherView, browsing: Browsing) -> None:
    """A port that another program has is an error with a hint."""
    with pytest.raises(SettingsError, match="cannot be used") as refused:
        Server(view, browsing.access.port, SECRET, 0, allow_changes=False)
    assert "--port" in refused.value.hint


def links(answer: Answer) -> list[str]:
    """Return where the links of a page lead."""
    return [values["href"] or "" for tag, values in answer.page.tags if tag == "a"]

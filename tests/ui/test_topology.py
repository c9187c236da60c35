"""The pages about a topology: its report, pause and resume, options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.ui.browsing import Browsing, served
from windrow.settings.settings import Settings
from windrow.testing import Harness
from windrow.topology import Microbatch, Topology
from windrow.topology.status import status_of
from windrow.ui import TopologyView

EMBEDDED = Settings(engine="embedded")


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """A topology that counts payloads, and has read two."""
    topology = Topology("counts", depots=["words"], states="counts")
    topology.state("counts", key="word STRING", value="times BIGINT")

    @topology.function
    def count(microbatch: Microbatch) -> None:
        rows = microbatch.rows("words").rename_columns({"payload": "word"})
        microbatch.state("counts").combine(rows, times="count")

    harness = Harness(topology, tmp_path)
    harness.append([{"payload": "be"}, {"payload": "be"}], "words")
    harness.run()
    return harness


@pytest.fixture
def browsing(harness: Harness) -> Iterator[Browsing]:
    """What asks a server that allows changes."""
    view = TopologyView(harness.topology, EMBEDDED, lambda: nullcontext(harness.topology))
    with served(view, allow_changes=True) as asks:
        yield asks


def test_report(browsing: Browsing) -> None:
    """The report shows the states; there is no source to pick, and no stream."""
    page = browsing.get("/").page
    assert page.rows["states"] == [["state", "rows"], ["counts", "1"]]
    assert ("select", {"name": "source"}) not in page.tags
    assert browsing.get("/stream").status == 404


def test_changes(harness: Harness, browsing: Browsing) -> None:
    """Buttons pause and resume, and a form sets an option; one that is not there is refused."""
    assert browsing.post("/option", name="max_messages", value="7").status == 303
    assert browsing.post("/pause").status == 303
    status = status_of(harness.topology, harness.clock.now(), EMBEDDED)
    assert (status.options, status.ledger.paused) == ({"max_messages": "7"}, True)
    refused = browsing.post("/option", name="colour", value="7")
    assert (refused.status, "there is no option" in refused.text) == (400, True)
    assert browsing.post("/resume").status == 303
    assert [row["kind"] for row in harness.history()][-3:] == ["option", "pause", "resume"]

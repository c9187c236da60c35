import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from tests.clocks import NOW
from tests.messages import SECOND, message, table
from windrow.errors import NotFoundError, SettingsError
from windrow.reading import plot

pytestmark = pytest.mark.ci

pytest.importorskip("altair")

RED, BLUE, SAND = "#e02b20", "#a9cbea", "#f1dc9b"


def stalled(key: str = "k", count: int = 30, late: int = 20 * SECOND) -> list[dict[str, Any]]:
    """Return a message every two seconds, the sixth to the tenth arriving together, `late` after the sixth."""
    rows = []
    for number in range(count):
        event_time = NOW + 2 * SECOND * number
        is_delayed = 5 <= number < 10
        received_at = NOW + 10 * SECOND + late if is_delayed else event_time + 1_000
        rows.append(message("a", event_time, received_at, key=key, source=key))
    return sorted(rows, key=lambda row: row["received_at"])


def batched(rows: list[dict[str, Any]], **values: Any) -> windrow.BatchResult:
    """Return what the default rules make of the messages."""
    return windrow.batch(table(rows), windrow.Rules(), **values)


@pytest.fixture(scope="module")
def result() -> windrow.BatchResult:
    """Return the outcome of a stall: closed and open batches, and rejected messages."""
    return batched(stalled())


@pytest.fixture(scope="module")
def chart(result: windrow.BatchResult) -> Any:
    """Return the picture of the stall, with lines."""
    return plot.timeline(result.batches, result.rejected)


@pytest.fixture(scope="module")
def drawing(chart: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the picture of the stall as Vega draws it."""
    return svg(chart, tmp_path_factory.mktemp("plot"))


def draw(result: windrow.BatchResult, **values: Any) -> dict[str, Any]:
    """Return the picture of a result as Vega-Lite."""
    picture: dict[str, Any] = plot.timeline(result.batches, result.rejected, **values).to_dict()
    return picture


def facts(picture: dict[str, Any]) -> str:
    """Return what the picture says it holds."""
    return str(picture["title"]["subtitle"][-1])


def svg(chart: Any, directory: Path) -> str:
    """Return a picture as Vega draws it."""
    file = directory / "picture.svg"
    plot.save(chart, file)
    return file.read_text()


def circles(drawing: str, colour: str) -> int:
    """Count the points of a colour; the legend's symbols are drawn elsewhere."""
    return len(re.findall(rf'aria-roledescription="circle"[^>]*fill="{colour}"', drawing))


class TestLines:
    def test_every_message_and_batch_is_there(self, result, chart):
        """Below the limit the picture holds one row a message and one a batch, and nothing else."""
        picture = chart.to_dict()
        assert len(picture["datasets"]["messages"]) == 30
        assert len(picture["datasets"]["batches"]) == result.batches.num_rows
        assert "bands" not in picture["datasets"]

    def test_vega_draws_each_window_as_a_box(self, result, drawing):
        """Each batch is a box above and two below, of which one ends at the timeout, in colours that take turns."""
        blue, sand = (len(re.findall(rf'<path[^>]*fill="{colour}"', drawing)) for colour in (BLUE, SAND))
        assert blue + sand == 3 * result.batches.num_rows
        assert 0 <= blue - sand <= 3

    def test_rejected_messages_are_red_on_both_lines(self, result, drawing):
        """A rejected message is a red point on the event time line and one on the processing time line."""
        assert result.rejected.num_rows > 0
        assert circles(drawing, RED) == 2 * result.rejected.num_rows

    def test_closed_batches_have_a_mark_and_open_ones_are_dashed(self, result, drawing):
        """There is a mark where each closed batch closed, and the boxes of each open one are dashed."""
        states = result.batches["state"].to_pylist()
        marks = re.findall(r'<line[^>]*stroke="#(?:2f6ea5|a8780a)"', drawing)
        dashed = drawing.count('stroke-dasharray="5,3"')
        assert (len(marks), dashed) == (states.count("closed"), 3 * states.count("open"))
        assert states.count("open") > 0

    def test_batches_that_are_open_together_have_levels(self, chart):
        """Below, no two batches of a stream on one level are open at the same time."""
        batches = sorted(chart.to_dict()["datasets"]["batches"], key=lambda row: row["window_start"])
        levels = {row["level"] for row in batches}
        assert len(levels) > 1
        for level in levels:
            mine = [row for row in batches if row["level"] == level]
            assert all(earlier["timeout_at"] <= later["window_start"] for earlier, later in itertools.pairwise(mine))

    def test_times_are_exact(self):
        """Tooltips tell times to the microsecond, and the point stands at the same time in milliseconds."""
        (point,) = draw(batched([message("a", NOW + 1, NOW + 3)]))["datasets"]["messages"]
        assert point["event_time"] == (NOW + 1) / 1_000
        assert point["event_time_text"].endswith("000001Z")
        assert point["delay_seconds"] == 2e-6

    def test_reasons_are_counted_in_the_legend(self):
        """The legend names accepted messages and each reason with their numbers."""
        rows = [message("a"), message("a"), message("b", NOW - 60 * SECOND), message("b", NOW + 60 * SECOND)]
        text = json.dumps(draw(batched(rows)))
        for label in ("accepted (1)", "duplicate (1)", "too_old (1)", "too_far_ahead (1)"):
            assert label in text

    def test_parts_of_a_window_are_all_drawn(self, tmp_path):
        """Parts that share a window are a box each."""
        rules = windrow.Rules(max_batch_bytes=4)
        result = windrow.batch(table([message(f"type{number}") for number in range(3)]), rules, flush=True)
        assert result.batches.num_rows == 3
        drawing = svg(plot.timeline(result.batches, result.rejected), tmp_path)
        assert len(re.findall(rf'<path[^>]*fill="(?:{BLUE}|{SAND})"', drawing)) == 3 * 3


class TestBands:
    def test_bands_above_the_limit(self, result):
        """Above the limit there are bands instead of messages, and together they count every message."""
        picture = draw(result, max_lines=29)
        bands = picture["datasets"]["bands"]
        assert "messages" not in picture["datasets"]
        assert len(bands) <= 29
        assert sum(band["messages"] for band in bands) == 30

    def test_rejected_messages_keep_their_colour(self, result, tmp_path):
        """Bands of rejected messages are red."""
        drawing = svg(plot.timeline(result.batches, result.rejected, max_lines=29), tmp_path)
        assert re.search(rf'<line[^>]*stroke="{RED}"', drawing)

    def test_too_many_windows(self, result):
        """Above as many batches there are no boxes, and the picture says so."""
        picture = draw(result, max_lines=3)
        assert "batches" not in picture["datasets"]
        assert "too many windows" in picture["title"]["subtitle"][1]


class TestStretch:
    def test_only_what_touches_the_stretch(self, result):
        """Between begin and end lie the messages whose line, and the batches whose window, touches it."""
        start, end = NOW + 29 * SECOND, NOW + 31 * SECOND
        picture = draw(result, start=start, end=end)
        times = [(row["event_time"] * 1_000, row["processing_time"] * 1_000) for row in picture["datasets"]["messages"]]
        assert times
        assert all(min(both) < end and max(both) >= start for both in times)
        assert len(times) < 30

    def test_nothing_to_draw(self, result):
        """Without a message in the stretch, or at all, there is no picture."""
        with pytest.raises(NotFoundError):
            draw(result, start=0, end=SECOND)
        with pytest.raises(NotFoundError):
            draw(batched([]))

    def test_only_rejected_messages(self, result):
        """A table of rejected messages alone makes a picture."""
        picture = plot.timeline(result.batches.slice(0, 0), result.rejected).to_dict()
        assert len(picture["datasets"]["messages"]) == result.rejected.num_rows

    def test_messages_without_processing_time_are_counted(self):
        """Invalid messages have no place in the picture, which says how many they are."""
        picture = draw(batched([message("a"), message(None), message("b", None)]))
        assert len(picture["datasets"]["messages"]) == 1
        assert "2 rejected before they were processed" in facts(picture)


class TestStreams:
    def test_a_row_each(self):
        """Each stream has a row of its own, ordered by name from the top."""
        result = batched(stalled("a") + stalled("b") + stalled("c"))
        streams = draw(result)["datasets"]["streams"]
        assert [(row["stream"], row["foot"]) for row in streams] == [("a", 2), ("b", 1), ("c", 0)]

    def test_those_with_most_messages(self):
        """Beyond the limit the streams with fewer messages are left out, and the picture says how many."""
        picture = draw(batched(stalled("a", 5) + stalled("b", 9) + stalled("c", 7)), max_streams=2)
        assert [row["stream"] for row in picture["datasets"]["streams"]] == ["b", "c"]
        assert {row["stream"] for row in picture["datasets"]["batches"]} == {"b", "c"}
        assert "1 streams with fewer messages" in facts(picture)

    def test_names_keep_sources_apart(self):
        """The same key of two sources is two rows, named by both."""
        rows = [message("a", key="k", source=source) for source in ("s", "t")]
        assert [row["stream"] for row in draw(batched(rows))["datasets"]["streams"]] == ["s / k", "t / k"]


class TestSave:
    def test_html_needs_no_network(self, chart, tmp_path):
        """The page holds its scripts and names no other."""
        file = tmp_path / "picture.html"
        plot.save(chart, file)
        page = file.read_text()
        assert "vegaEmbed(" in page
        assert not re.search(r"<(?:script|link)[^>]+(?:src|href)\s*=", page)

    def test_names_cannot_end_the_script(self, tmp_path):
        """A key that reads like markup stays a key."""
        result, file = batched([message("a", key="</script><b>")]), tmp_path / "picture.html"
        plot.save(plot.timeline(result.batches, result.rejected), file)
        assert "</script><b>" not in file.read_text()

    def test_png(self, chart, tmp_path):
        """A .png is a picture."""
        file = tmp_path / "picture.png"
        plot.save(chart, file)
        assert file.read_bytes().startswith(b"\x89PNG")

    def test_json(self, chart, tmp_path):
        """A .json is the Vega-Lite with its data."""
        file = tmp_path / "picture.json"
        plot.save(chart, str(file))
        assert len(json.loads(file.read_text())["datasets"]["messages"]) == 30

    def test_other_suffixes(self, chart, tmp_path):
        """Another suffix, or none, is refused with those that there are."""
        for name in ("picture.gif", "picture"):
            with pytest.raises(SettingsError, match=r"\.html, \.png, \.svg or \.json"):
                plot.save(chart, tmp_path / name)
        assert not list(tmp_path.iterdir())


def test_columns_of_the_ledger_are_enough():
    """Columns beyond the contract are not asked for, and binary payloads do not matter."""
    messages = table(stalled())
    binary = messages.set_column(
        messages.column_names.index("payload"), "payload", messages["payload"].cast(pa.binary())
    )
    result = windrow.batch(binary, windrow.Rules())
    assert len(draw(result)["datasets"]["messages"]) == 30


def test_missing_extra(tmp_path):
    """Without altair the error names what to install."""
    script = "import sys; sys.modules['altair'] = None; import windrow.reading.plot"
    completed = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "WINDROW-MISSING-EXTRA: pictures need altair" in completed.stderr

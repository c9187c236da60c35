"""Pictures of microbatches: what is drawn is what the history tells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from windrow.errors import NotFoundError
from windrow.reading import plot

pytestmark = pytest.mark.ci

pytest.importorskip("altair")

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")


def history(count: int, **changed: dict[int, Any]) -> pa.Table:
    """Return a history of microbatches of data, ten seconds apart; `changed` has other values by column and place."""
    usual = {
        "attempt": 1, "kind": "data", "message_count": 100, "accepted": 90, "rejected": 10, "opened": 3, "closed": 2,
        "engine": "embedded", "prime_ms": 5.0, "plan_ms": 6.0, "process_ms": 7.0, "newest_ms": 1_000.0,
        "oldest_ms": 3_000.0, "commit_ms": 20.0,
    }  # fmt: skip
    columns = {
        name: [changed.get(name, {}).get(place, value) for place in range(count)] for name, value in usual.items()
    }
    types = {"newest_ms": pa.float64(), "oldest_ms": pa.float64(), "commit_ms": pa.float64()}
    arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    started = pa.array([START + timedelta(seconds=10 * place) for place in range(count)], TIME)
    return pa.table({"microbatch": pa.array(range(1, count + 1), pa.int64()), "started_at": started} | arrays)


def draw(table: pa.Table, **values: Any) -> dict[str, Any]:
    """Return the picture as Vega-Lite."""
    picture: dict[str, Any] = plot.microbatches(table, **values).to_dict()
    return picture


def heads(picture: dict[str, Any]) -> list[str]:
    """Return the titles of the panels."""
    return [panel["title"]["text"] for panel in picture["vconcat"]]


class TestBars:
    def test_one_each(self):
        """Few microbatches have a bar each, with the messages and phases that the history tells."""
        bars = draw(history(3, rejected={1: 0}, accepted={1: 100}, process_ms={2: 70.0}))["datasets"]["bars"]
        assert [(row["first"], row["accepted"], row["rejected"]) for row in bars] == [
            (1, 90, 10),
            (2, 100, 0),
            (3, 90, 10),
        ]
        assert [bars[2][name] for name in ("prime", "plan", "process", "commit")] == [5, 6, 70, 20]

    def test_many(self):
        """Of many microbatches several share a bar: messages are added up, phases are means, nothing is lost."""
        table = history(10_000, rejected={7: 1_000}, process_ms={0: 57.0})
        picture = draw(table)
        bars = picture["datasets"]["bars"]
        assert len(bars) == 200
        assert sum(row["rejected"] for row in bars) == 10 * 9_999 + 1_000
        assert bars[0]["process"] == pytest.approx(8.0)
        assert (bars[-1]["first"], bars[-1]["last"]) == (9_951, 10_000)
        assert "Each bar stands for 50 microbatches" in str(picture["title"])

    def test_a_rest_has_a_bar(self):
        """What is left over when microbatches share bars has a bar as well."""
        bars = draw(history(401))["datasets"]["bars"]
        assert (len(bars), bars[-1]["message_count"]) == (81, 100)


class TestPhases:
    def test_unknown_commits(self):
        """The picture says of how many commits nobody knows how long they took."""
        picture = draw(history(3, commit_ms={0: None, 1: None}))
        assert [row["commit"] for row in picture["datasets"]["bars"]] == [None, None, 20]
        assert "The commits of 2 microbatches are not drawn" in str(picture["title"])

    def test_a_bar_far_beyond_the_others_does_not_hide_them(self):
        """One that took a hundred times as long is cut off; the title says how long it took."""
        panel = draw(history(30, process_ms={0: 7_600.0}))["vconcat"][1]
        assert 38 < panel["layer"][0]["encoding"]["y"]["scale"]["domain"][1] < 100
        assert "longest 7.63 s" in panel["title"]["text"]


class TestLag:
    def test_from_the_nearest_to_the_furthest(self):
        """A bar's lag reaches from the least to the most of its microbatches; where none read data there is none."""
        unknown = {place: None for place in range(400) if place < 2 or place == 4}
        table = history(400, newest_ms={3: 10.0} | unknown, oldest_ms={2: 9_000.0} | unknown)
        bars = draw(table)["datasets"]["bars"]
        assert [(row["newest_ms"], row["oldest_ms"]) for row in bars[:3]] == [(None, None), (10, 9_000), (1_000, 3_000)]

    def test_no_data(self):
        """A history without data has no panel of lag."""
        nobody = {0: None, 1: None}
        table = history(2, kind={0: "tick", 1: "tick"}, newest_ms=nobody, oldest_ms=nobody)
        assert not any("Lag" in head for head in heads(draw(table)))


class TestOthers:
    def test_marks(self):
        """Ticks, flushes, changes of rules, pauses and what was tried again have marks, counted by bar."""
        table = history(1_000, kind={0: "tick", 1: "tick", 999: "flush"}, attempt={500: 3})
        events = draw(table)["datasets"]["events"]
        assert [(row["left"] + 0.5, row["name"], row["microbatches"]) for row in events] == [
            (1, "tick", 2),
            (501, "tried again", 1),
            (996, "flush", 1),
        ]

    def test_none(self):
        """Where all was data at the first attempt there is no such panel."""
        assert heads(draw(history(2)))[-1].startswith("Lag")


class TestPicture:
    @pytest.mark.parametrize("count", [1, 201])
    def test_is_drawn(self, count, tmp_path):
        """Vega draws as many bars of phases as there are, and names the other kinds."""
        file = tmp_path / "picture.svg"
        plot.save(plot.microbatches(history(count, kind={0: "rules"})), file)
        drawing = file.read_text()
        assert drawing.count("name: process") == min(count, 101)
        assert ">rules<" in drawing

    def test_nothing_to_draw(self):
        """An empty history is no picture."""
        with pytest.raises(NotFoundError):
            draw(history(0))

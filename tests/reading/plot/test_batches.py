"""Pictures of batches and delays: what is drawn is what was counted."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from windrow.errors import NotFoundError
from windrow.reading import Distribution, plot

pytestmark = pytest.mark.ci

pytest.importorskip("altair")

MAX_DELAY = 5_000_000
ODD = "</script><b>'; drop {table} \\\"\u2028 ${x} #"


def sizes(counts: list[int], reason: str | None = "timeout", open_reason: str = "message") -> pa.Table:
    """Return a batch for each count of messages, ten bytes a message."""
    return pa.table(
        {
            "source": pa.array(["s"] * len(counts), pa.string()),
            "state": pa.array(["closed" if reason else "open"] * len(counts), pa.string()),
            "open_reason": pa.array([open_reason] * len(counts), pa.string()),
            "close_reason": pa.array([reason] * len(counts), pa.string()),
            "message_count": pa.array(counts, pa.int64()),
            "bytes": pa.array([10 * count for count in counts], pa.int64()),
        }
    )


def delays(*rows: tuple[str, str, int, int]) -> pa.Table:
    """Return counts by name, outcome and delay."""
    names = ("name", "outcome", "delay_ms", "messages")
    types = (pa.string(), pa.string(), pa.int64(), pa.int64())
    return pa.table({name: pa.array([row[at] for row in rows], types[at]) for at, name in enumerate(names)})


def waits(*rows: tuple[int, int]) -> pa.Table:
    """Return counts by wait."""
    values, counts = ([row[at] for row in rows] for at in (0, 1))
    return pa.table({"wait_ms": pa.array(values, pa.int64()), "messages": pa.array(counts, pa.int64())})


TYPICAL = delays(
    ("a", "accepted", -3, 10), ("a", "accepted", 40, 900), ("a", "too_old", 5_001, 9), ("a", "too_old", 60_000, 1),
    ("b", "accepted", 2, 80), ("b", "duplicate", 2, 20),
)  # fmt: skip


def distribution(*tables: pa.Table, **values: Any) -> Distribution:
    """Return sizes, delays and waits with what comes with them."""
    return Distribution(*tables, **{"by": "source", "max_delay_us": MAX_DELAY, "max_lead_us": 1_000_000} | values)


def draw(*tables: pa.Table, **values: Any) -> dict[str, Any]:
    """Return the picture as Vega-Lite."""
    picture: dict[str, Any] = plot.batches(distribution(*tables, **values)).to_dict()
    return picture


def total(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return what bars count by name."""
    return {name: sum(row["count"] for row in rows if row["name"] == name) for name in {row["name"] for row in rows}}


class TestSizes:
    def test_every_batch_is_counted(self):
        """The bars count every batch once, by what closed it, in the bin that holds its size."""
        some = pa.concat_tables([sizes([1, 2, 2, 109]), sizes([7], "flush"), sizes([109], None)])
        data = draw(some, TYPICAL, waits((10, 1)))["datasets"]
        for name, factor in (("messages", 1), ("bytes", 10)):
            assert total(data[name]) == {"timeout": 4, "flush": 1, "still open": 1}
            (flushed,) = (row for row in data[name] if row["name"] == "flush")
            assert flushed["low"] <= 7 * factor < flushed["high"]

    @pytest.mark.parametrize("seed", [1, 4])
    def test_a_million_batches_are_few_rows(self, seed):
        """However many batches there are and however far apart, the picture holds few rows that count them all."""
        random = np.random.default_rng(seed)
        counts = np.maximum(random.lognormal(seed, seed, 10_000), 1).astype(np.int64).tolist()
        data = draw(sizes(counts), TYPICAL, waits())["datasets"]
        assert total(data["messages"]) == {"timeout": 10_000}
        assert total(data["bytes"]) == {"timeout": 10_000}
        assert sum(len(rows) for rows in data.values()) < 500

    def test_facts(self):
        """The picture says how many messages the batches hold and why they were opened."""
        some = pa.concat_tables([sizes([3]), sizes([4], open_reason="conflict")])
        text = "\n".join(draw(some, TYPICAL, waits())["title"]["subtitle"])
        assert "7 messages in 2 batches, 30 rejected" in text
        assert "a message that fits in no open window (1), a second message of a type (1)" in text


class TestDelays:
    def test_every_message_is_counted(self):
        """Accepted and rejected messages are counted apart, the latter by reason."""
        data = draw(sizes([1]), TYPICAL, waits())["datasets"]
        assert total(data["accepted"]) == {"accepted": 990}
        assert total(data["rejected"]) == {"too_old": 10, "duplicate": 20}

    def test_max_delay_is_marked_and_divides_bins(self):
        """The rule is a line, and no bin has messages from both of its sides."""
        data = draw(sizes([1]), TYPICAL, waits())["datasets"]
        assert data["limits"] == [{"at": 5_000, "label": "max_delay 5 s"}]
        late = [row for row in data["rejected"] if row["name"] == "too_old"]
        assert all(row["low"] >= 5_000 for row in late)

    def test_max_lead_where_it_matters(self):
        """How far messages may be ahead is marked only where some come near it."""
        ahead = delays(("a", "accepted", 5, 1), ("a", "too_far_ahead", -1_500, 1))
        for table, expected in ((TYPICAL, ["max_delay"]), (ahead, ["max_delay", "max_lead"])):
            data = draw(sizes([]), table, waits())["datasets"]
            assert [row["label"].split()[0] for row in data["limits"]] == expected

    def test_names(self):
        """Each name has its median, the delay of 99% of its messages and its longest, most rejections first."""
        first, second = draw(sizes([1]), TYPICAL, waits())["datasets"]["names"]
        assert (first["name"], first["messages"], first["rejected"]) == ("b", 100, 20)
        assert (first["p50"], first["p99"], first["longest"]) == (2, 2, 2)
        assert (second["name"], second["messages"], second["rejected"]) == ("a", 920, 10)
        assert (second["p50"], second["p99"], second["longest"]) == (40, 5_001, 60_000)

    def test_many_names(self):
        """Of many names the latest are drawn, and the picture says how many there are."""
        many = delays(*((f"name {number:02}", "accepted", number, 1) for number in range(50)))
        picture = draw(sizes([1]), many, waits(), by="type")
        assert [row["name"] for row in picture["datasets"]["names"]] == [f"name {49 - place:02}" for place in range(12)]
        assert "The 12 latest of 50 types" in str(picture["vconcat"])

    def test_quantiles(self):
        """The quantiles are those of the messages, each counted as often as it is there."""
        random, rows = np.random.default_rng(1), []
        for name, size in (("a", 1), ("b", 7), ("c", 200)):
            values = np.unique(random.integers(-50, 9_000, size)).tolist()
            rows += [(name, "accepted", value, int(random.integers(1, 30))) for value in values]
        for row in draw(sizes([1]), delays(*rows), waits())["datasets"]["names"]:
            each = sorted(value for name, _, value, count in rows for _ in range(count) if name == row["name"])
            for column, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
                assert row[column] == each[math.ceil(share * len(each)) - 1]


class TestWaits:
    def test_every_message_is_counted(self):
        """The bars count every wait in the bin that holds it."""
        some = waits((0, 5), (999, 1), (14_999, 3))
        rows = draw(sizes([1]), TYPICAL, some)["datasets"]["waits"]
        assert [row["count"] for row in rows] == [5, 1, 3]
        for row, wait in zip(rows, (0, 999, 14_999), strict=True):
            assert row["low"] <= wait < row["high"]


class TestPicture:
    def test_is_drawn(self, tmp_path):
        """Vega draws each panel, with few rows and with one, whatever part is missing."""
        parts = (sizes([1]), TYPICAL, waits((5, 1)))
        for number, without in enumerate([(), (0, 2), (1,)]):
            tables = [part.slice(0, 0) if at in without else part for at, part in enumerate(parts)]
            file = tmp_path / f"{number}.svg"
            plot.save(plot.batches(distribution(*tables)), file)
            drawing = file.read_text()
            assert ("Messages in a batch" in drawing) == (0 not in without)
            assert ("Delay on arrival" in drawing) == (1 not in without)
            assert ("Wait until closed" in drawing) == (2 not in without)

    def test_odd_names(self, tmp_path):
        """A name that reads like markup stays a name, and the page names no other."""
        odd = distribution(sizes([1]), delays((ODD, "accepted", 1, 1), (ODD, ODD, 1, 1)), waits(), by=ODD)
        chart = plot.batches(odd, title=ODD)
        plot.save(chart, tmp_path / "picture.html")
        page = (tmp_path / "picture.html").read_text()
        assert "</script><b>" not in page
        assert not re.search(r"<(?:script|link)[^>]+(?:src|href)\s*=", page)

    def test_nothing_to_draw(self):
        """Without a batch and a message there is no picture."""
        with pytest.raises(NotFoundError):
            draw(sizes([]), TYPICAL.slice(0, 0), waits())


def test_only_times_far_apart():
    """Delays of centuries, ahead and late, are drawn as well."""
    years = 500 * 365 * 86_400_000
    some = delays(("a", "too_old", years, 1), ("a", "too_far_ahead", -years, 2), ("a", "accepted", 0, 3))
    data = draw(sizes([1]), some, waits())["datasets"]
    assert total(data["rejected"]) == {"too_old": 1, "too_far_ahead": 2}
    assert pc.sum(pa.table({"count": [row["count"] for row in data["accepted"]]})["count"]).as_py() == 3

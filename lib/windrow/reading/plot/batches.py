"""Draw histograms: how large batches are, how late their messages came, and how long these waited."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFound
from windrow.reading.plot import bins
from windrow.reading.plot.bins import SHORT_COUNTS, SHORT_TIMES, Edges, time_text
from windrow.reading.plot.theme import (
    ACCEPTED,
    CLOSINGS,
    FAINT,
    INK,
    LIMIT,
    MUTED,
    REJECTED,
    WIDTH,
    Spec,
    coloured,
    drawn,
    mark,
    outcomes,
    panel,
    tips,
    titled,
)

if TYPE_CHECKING:
    import altair as alt

Data = dict[str, list[Spec]]

MOST_NAMES, SHARES = 12, {"p50": 0.5, "p99": 0.99, "longest": 1.0}
STILL_OPEN = "still open"
OPENINGS = {
    "message": "a message that fits in no open window",
    "conflict": "a second message of a type",
    "size": "a batch that grew too large",
}
THIRD, MARGIN = 288, 190  # pixels: a panel of three, room for words on the right


def batches(
    sizes: pa.Table,
    delays: pa.Table,
    waits: pa.Table,
    *,
    title: str = "Batches and delays",
    by: str = "source",
    max_delay: int | None = None,
    max_leap: int | None = None,
) -> alt.VConcatChart:
    """Return the picture of what `reading.distribution` counted; `max_delay` and `max_leap` (microseconds) are marked.

    Raises MissingExtra, or NotFound when there is neither a batch nor a delay.
    """
    if not sizes.num_rows + delays.num_rows:
        raise NotFound("there is no batch and no message to draw", "Choose another stream or a longer range.")
    data: Data = {}
    upper = [*_sizes(sizes, data), *_waits(waits, data)]
    lower = _delays(delays, data, by, {"max_delay": max_delay, "max_leap": max_leap})
    spec = {
        "title": titled(title, *_facts(sizes, delays)),
        "vconcat": [{"hconcat": upper, "spacing": 36}] * bool(upper) + lower,
        "spacing": 26,
        "resolve": {"scale": {"color": "independent", "x": "independent"}},
    }
    return drawn(spec, data)


def _sizes(sizes: pa.Table, data: Data) -> list[Spec]:
    """Draw how many messages and how many bytes batches hold, coloured by what closed them."""
    if not sizes.num_rows:
        return []
    how = pc.fill_null(sizes["close_reason"], STILL_OPEN).to_numpy(zero_copy_only=False)
    order = sorted(set(how), key=list(CLOSINGS).index)
    panels = []
    for column, what, text in (("message_count", "messages", "Messages"), ("bytes", "bytes", "Bytes")):
        values = sizes[column].to_numpy()
        edges = bins.counts(values)
        data[what] = bins.stacked(values, how, order, np.ones(len(values)), edges).to_pylist()
        largest = f"median {np.median(values):,.0f}, largest {values.max():,}"
        bars = _bars(what, edges, edges.axis | {"labelExpr": SHORT_COUNTS}, ("batches", what), _closing(order))
        panels.append(bars | {"title": panel(f"{text} in a batch: {largest}"), "width": THIRD, "height": 150})
    return panels


def _waits(waits: pa.Table, data: Data) -> list[Spec]:
    """Draw how long messages waited, from their arrival to the close of their batch."""
    if not waits.num_rows:
        return []
    values, weights = (waits[name].to_numpy() for name in ("wait_ms", "messages"))
    edges = bins.even(int(values.min()), int(values.max()))
    accepted = np.full(len(values), "accepted")
    data["waits"] = bins.stacked(values, accepted, ["accepted"], weights, edges).to_pylist()
    shares = np.quantile(values, [0.5, 1.0], weights=weights, method="inverted_cdf")
    median, most = map(time_text, shares.tolist())
    axis = edges.axis | {"labelExpr": SHORT_TIMES}
    bars = _bars("waits", edges, axis, ("messages", "wait in ms"), {"value": ACCEPTED})
    text = f"Wait until closed: median {median}, longest {most}"
    return [bars | {"title": panel(text), "width": THIRD, "height": 150}]


def _delays(delays: pa.Table, data: Data, by: str, rules: dict[str, int | None]) -> list[Spec]:
    """Draw how old messages were when they arrived: accepted ones above, rejected ones below, then by name."""
    if not delays.num_rows:
        return []
    values, weights = (delays[name].to_numpy() for name in ("delay_ms", "messages"))
    sign = {"max_delay": 1, "max_leap": -1}
    limits = {name: sign[name] * value / 1e3 for name, value in rules.items() if value is not None}
    if values.min() > limits.get("max_leap", 0) / 2:
        limits.pop("max_leap", None)  # no message comes near it
    outcome = delays["outcome"].to_numpy(zero_copy_only=False)
    low, high = min(values.min(), 0, *limits.values()), max(values.max(), 0, *limits.values()) * 1.2 + 1
    edges = bins.times(low, high, list(limits.values()))
    data["limits"] = [{"at": at, "name": name, "label": f"{name} {time_text(abs(at))}"} for name, at in limits.items()]
    late = outcome != "accepted"
    panels = []
    for name, mine, height in (("accepted", ~late, 130), ("rejected", late, 90)):
        if mine.any():
            colours = outcomes(outcome[mine])
            stack = bins.stacked(values[mine], outcome[mine], list(colours), weights[mine], edges)
            data[name] = stack.to_pylist()
            legend: Spec = {"value": ACCEPTED} if name == "accepted" else coloured("name", colours)
            bars = _bars(name, edges, edges.axis, ("messages", "delay in ms"), legend)
            text = f"Delay on arrival of the {weights[mine].sum():,} {name} messages"
            layer = [bars, *_limits(edges)]
            panels.append({"title": panel(text), "width": WIDTH - MARGIN, "height": height, "layer": layer})
    return [*panels, _names(delays, data, by, edges)]


def _names(delays: pa.Table, data: Data, by: str, edges: Edges) -> Spec:
    """Draw median, 99% and longest delay of those with the most rejections, or else the longest delays."""
    counted = _by_name(delays)
    order = [("rejected", "descending"), ("p99", "descending"), ("name", "ascending")]
    late = next((limit["at"] for limit in data["limits"] if limit["name"] == "max_delay"), math.inf)
    data["names"] = [row | _words(row, late) for row in counted.sort_by(order).slice(0, MOST_NAMES).to_pylist()]
    which = f"The {MOST_NAMES} latest of {counted.num_rows:,} {by}s" if counted.num_rows > MOST_NAMES else f"By {by}"
    text = f"{which}: median (dot), up to 99% of the messages (bar), longest (mark)"
    y = {"field": "name", "type": "nominal", "sort": None, "axis": {"title": None, "labelLimit": 280, "grid": True}}
    x = {"type": "quantitative", "scale": edges.scale, "axis": edges.axis | {"title": "delay on arrival"}}
    p50, longest = x | {"field": "p50"}, x | {"field": "longest"}
    red = {"condition": {"test": "datum.rejected > 0", "value": REJECTED}, "value": MUTED}
    marks = [
        mark("rule", {"x": p50, "x2": {"field": "longest"}}, color=FAINT, strokeWidth=2),
        mark("rule", {"x": p50, "x2": {"field": "p99"}}, color=ACCEPTED, strokeWidth=7),
        mark("rule", {"x": x | {"field": "over"}, "x2": {"field": "p99"}}, color=REJECTED, strokeWidth=7),
        mark("circle", {"x": p50}, size=70, color=INK, opacity=1),
        mark("tick", {"x": longest, "color": red}, thickness=3, size=14),
        mark("text", {"x": {"value": WIDTH - MARGIN}, "text": {"field": "words"}, "color": red}, align="left", dx=10),
    ]
    encoding = {"y": y, "tooltip": tips("name", "messages", "rejected", *(f"{name}_text" for name in SHARES))}
    layer = [{"data": {"name": "names"}, "encoding": encoding, "layer": marks}, *_limits(edges, named=False)]
    return {"title": panel(text), "width": WIDTH - MARGIN, "height": 24 * len(data["names"]), "layer": layer}


def _by_name(delays: pa.Table) -> pa.Table:
    """Return messages, rejections and the quantiles of delay of each name."""
    ordered = delays.sort_by([("name", "ascending"), ("delay_ms", "ascending")])
    name, outcome, delay, weight = (
        ordered[column].to_numpy(zero_copy_only=False) for column in ("name", "outcome", "delay_ms", "messages")
    )
    names, first = np.unique(name.astype(np.str_), return_index=True)
    total, reached = np.add.reduceat(weight, first), np.cumsum(weight)
    before = reached[first] - weight[first]
    rejected = np.add.reduceat(np.where(outcome == "accepted", 0, weight), first)
    columns = {"name": names, "messages": total, "rejected": rejected}
    for column, share in SHARES.items():
        columns[column] = delay[np.searchsorted(reached, before + np.ceil(share * total))]
    return pa.table(columns)


def _words(row: Spec, late: float) -> Spec:
    """Return the texts for a name: its times and rejections; `over` is where the late part of its bar begins."""
    share = f"{row['rejected']:,} of {row['messages']:,} rejected"
    over = max(late, row["p50"]) if row["p99"] > late else None
    return {"words": share, "over": over} | {f"{name}_text": time_text(row[name]) for name in SHARES}


def _bars(name: str, edges: Edges, axis: Spec, what: tuple[str, str], colour: Spec) -> Spec:
    """Draw the bars of a histogram; `what` names the counts and the axis."""
    counted, by = what
    x = {"field": "low", "type": "quantitative", "scale": edges.scale, "axis": axis | {"title": None}}
    y_axis = {"title": counted, "tickCount": 4, "labelExpr": SHORT_COUNTS}
    y = {"field": "base", "type": "quantitative", "axis": y_axis, "scale": {"nice": True}}
    tooltip = [
        {"field": "name", "type": "nominal"},
        {"field": "low", "type": "quantitative", "title": f"{by} from"},
        {"field": "high", "type": "quantitative", "title": "to below"},
        {"field": "count", "type": "quantitative", "title": counted, "format": ","},
    ]
    encoding = {"x": x, "x2": {"field": "high"}, "y": y, "y2": {"field": "top"}, "color": colour, "tooltip": tooltip}
    return {"data": {"name": name}} | mark("rect", encoding, stroke="#ffffff", strokeWidth=0.4)


def _limits(edges: Edges, *, named: bool = True) -> list[Spec]:
    """Draw the rules as lines, with their names."""
    x = {"field": "at", "type": "quantitative", "scale": edges.scale}
    word = {"x": x, "y": {"value": 0}, "text": {"field": "label"}}
    marks = [
        mark("rule", {"x": x}, color=LIMIT, strokeDash=[4, 3], strokeWidth=1.3),
        mark("text", word, align="center", baseline="bottom", dy=-4, color=LIMIT),
    ]
    return [{"data": {"name": "limits"}} | one for one in marks[: 1 + named]]


def _closing(order: list[str]) -> Spec:
    names = {name: name if name == STILL_OPEN else f"closed by {name}" for name in order}
    label = f"({json.dumps(names)})[datum.label]"
    return coloured("name", {name: CLOSINGS[name] for name in order}, labelExpr=label, orient="bottom")


def _facts(sizes: pa.Table, delays: pa.Table) -> list[str]:
    """Say how many messages and batches there are, and why batches were opened."""
    rejected = pc.sum(delays.filter(pc.not_equal(delays["outcome"], "accepted"))["messages"]).as_py() or 0
    held = pc.sum(sizes["message_count"]).as_py() or 0
    counted = {row["values"]: row["counts"] for row in sizes["opened_by"].value_counts().to_pylist()}
    opened = ", ".join(f"{why} ({counted[name]:,})" for name, why in OPENINGS.items() if name in counted)
    facts = f"{held:,} messages in {sizes.num_rows:,} batches, {rejected:,} rejected with a known delay."
    return [facts, f"Windows were opened by {opened}."] if opened else [facts]

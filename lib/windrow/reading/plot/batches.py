"""Draw histograms: how large batches are, how late their messages came, and how long they waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFoundError
from windrow.reading.plot import bins, theme
from windrow.reading.plot.bins import SHORT_COUNTS, Edges, time_text

if TYPE_CHECKING:
    from windrow.reading import Distribution

MAX_NAMES, SHARES = 12, {"p50": 0.5, "p99": 0.99, "longest": 1.0}
STILL_OPEN = "still open"
OPENINGS = {
    "message": "a message that fits in no open window",
    "conflict": "a second message of a type",
    "size": "a batch that grew too large",
}
THIRD, MARGIN = 288, 190  # pixels: the width of one of three panels, the margin for text on the right


def batches(distribution: Distribution, *, title: str = "Batches and delays") -> alt.VConcatChart:
    """Return the picture of what `reading.distribution` counted, with the rules in force marked.

    Raises NotFoundError when there is neither a batch nor a delay.
    """
    if not distribution.sizes.num_rows + distribution.delays.num_rows:
        raise NotFoundError("there is no batch and no message to draw", "Choose another stream or a longer range.")
    data: dict[str, theme.Rows] = {}
    upper = [*_sizes(distribution.sizes, data), *_waits(distribution.waits, data)]
    panels: list[alt.HConcatChart | alt.LayerChart] = [alt.hconcat(*upper, spacing=36)] if upper else []
    panels += _delays(distribution, data)
    picture = alt.vconcat(*panels, spacing=26).resolve_scale(color="independent", x="independent")
    return theme.finish_picture(picture, title, _facts(distribution.sizes, distribution.delays), data)


def _sizes(sizes: pa.Table, data: dict[str, theme.Rows]) -> list[alt.LayerChart]:
    """Draw how many messages and how many bytes batches hold, coloured by what closed them."""
    if not sizes.num_rows:
        return []
    how = pc.fill_null(sizes["close_reason"], STILL_OPEN).to_numpy(zero_copy_only=False)
    colours = {name: colour for name, colour in theme.CLOSINGS.items() if name in how}
    labels = {name: name if name == STILL_OPEN else f"closed by {name}" for name in colours}
    panels = []
    for column, what in (("message_count", "messages"), ("bytes", "bytes")):
        values = sizes[column].to_numpy()
        edges = bins.counts(values)
        data[what] = bins.count_by_bin(values, how, np.ones(len(values)), edges)
        text = f"{what.title()} in a batch: median {np.median(values):,.0f}, largest {values.max():,}"
        bars = _histogram(what, edges, "batches", theme.colour_encoding("name", colours, labels, orient="bottom"))
        panels.append(theme.panel(text, 150, bars, width=THIRD))
    return panels


def _waits(waits: pa.Table, data: dict[str, theme.Rows]) -> list[alt.LayerChart]:
    """Draw how long messages waited, from their arrival to the close of their batch."""
    if not waits.num_rows:
        return []
    values, weights = (waits[name].to_numpy() for name in ("wait_ms", "messages"))
    edges = bins.times(values.min(), values.max())
    data["waits"] = bins.count_by_bin(values, np.full(len(values), "accepted"), weights, edges)
    shares = np.quantile(values, [0.5, 1.0], weights=weights, method="inverted_cdf")
    median, longest = map(time_text, shares.tolist())
    bars = _histogram("waits", edges, "messages", alt.value(theme.ACCEPTED))
    return [theme.panel(f"Wait until closed: median {median}, longest {longest}", 150, bars, width=THIRD)]


def _delays(distribution: Distribution, data: dict[str, theme.Rows]) -> list[alt.LayerChart]:
    """Draw how old messages were when they arrived: accepted ones above, rejected ones below, then by name."""
    delays = distribution.delays
    if not delays.num_rows:
        return []
    values, weights = (delays[name].to_numpy() for name in ("delay_ms", "messages"))
    limits = {"max_delay": distribution.max_delay_us / 1e3, "max_lead": -distribution.max_lead_us / 1e3}
    if values.min() > limits["max_lead"] / 2:
        del limits["max_lead"]  # no message is near this limit
    outcome = delays["outcome"].to_numpy(zero_copy_only=False)
    low, high = min(values.min(), 0, *limits.values()), max(values.max(), 0, *limits.values()) * 1.2 + 1
    edges = bins.times(low, high, list(limits.values()))
    data["limits"] = [{"at": at, "label": f"{name} {time_text(abs(at))}"} for name, at in limits.items()]
    panels: list[alt.LayerChart] = []
    for name, mine, height in (("accepted", outcome == "accepted", 130), ("rejected", outcome != "accepted", 90)):
        if mine.any():
            data[name] = bins.count_by_bin(values[mine], outcome[mine], weights[mine], edges)
            by_outcome = theme.colour_encoding("name", theme.outcomes(outcome[mine]))
            colour = alt.value(theme.ACCEPTED) if name == "accepted" else by_outcome
            bars = _histogram(name, edges, "messages", colour)
            text = f"Delay on arrival of the {weights[mine].sum():,} {name} messages"
            panels.append(theme.panel(text, height, bars, *_limits(edges), width=theme.WIDTH - MARGIN))
    return [*panels, _names(delays, data, distribution.by, edges)]


def _names(delays: pa.Table, data: dict[str, theme.Rows], by: str, edges: Edges) -> alt.LayerChart:
    """Draw the median, 99% and longest delay of the names with the most rejections, then the longest delays."""
    rows = _by_name(delays)
    order = [("rejected", "descending"), ("p99", "descending"), ("name", "ascending")]
    data["names"] = [row | _words(row) for row in rows.sort_by(order).slice(0, MAX_NAMES).to_pylist()]
    which = f"The {MAX_NAMES} latest of {rows.num_rows:,} {by}s" if rows.num_rows > MAX_NAMES else f"By {by}"
    p50, longest = (alt.X(f"{name}:Q", scale=edges.scale, axis=edges.axis) for name in ("p50", "longest"))
    red = alt.when("datum.rejected > 0").then(alt.value(theme.REJECTED)).otherwise(alt.value(theme.MUTED))
    base = theme.chart("names").encode(
        y=alt.Y("name:N", sort=None, axis=alt.Axis(title=None, labelLimit=280, grid=True)),
        tooltip=theme.tooltips("name", "messages", "rejected", *(f"{name}_text" for name in SHARES)),
    )
    return theme.panel(
        f"{which}: median (dot), up to 99% of the messages (bar), longest (mark)",
        24 * len(data["names"]),
        base.mark_rule(color=theme.FAINT, strokeWidth=2).encode(x=p50, x2="longest"),
        base.mark_rule(color=theme.ACCEPTED, strokeWidth=7).encode(x=p50, x2="p99"),
        base.mark_circle(size=70, color=theme.INK, opacity=1).encode(x=p50),
        base.mark_tick(thickness=3, size=14).encode(x=longest, color=red),
        base.mark_text(align="left", dx=10).encode(x=alt.value(theme.WIDTH - MARGIN), text="words:N", color=red),
        _limits(edges)[0],
        width=theme.WIDTH - MARGIN,
    )


def _by_name(delays: pa.Table) -> pa.Table:
    """Return how many messages each name has, how many were rejected, and quantiles of their delays."""
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


def _words(row: dict[str, Any]) -> dict[str, str]:
    share = f"{row['rejected']:,} of {row['messages']:,} rejected"
    return {"words": share} | {f"{name}_text": time_text(row[name]) for name in SHARES}


def _histogram(name: str, edges: Edges, counted: str, colour: Any) -> alt.Chart:
    """Draw the bars of a histogram, stacked by name; `counted` says what is counted."""
    x = alt.X("low:Q", bin="binned", scale=edges.scale, axis=edges.axis)
    y = alt.Y("count:Q", stack="zero", axis=alt.Axis(title=counted, tickCount=4, labelExpr=SHORT_COUNTS))
    bars = theme.chart(name).mark_bar(stroke="#ffffff", strokeWidth=0.4, binSpacing=0)
    return bars.encode(x=x, x2="high", y=y, color=colour, tooltip=theme.tooltips("name", "low", "high", "count"))


def _limits(edges: Edges) -> list[alt.Chart]:
    limits = theme.chart("limits").encode(x=alt.X("at:Q", scale=edges.scale))
    names = limits.mark_text(align="center", baseline="bottom", dy=-4, color=theme.LIMIT)
    lines = limits.mark_rule(color=theme.LIMIT, strokeDash=[4, 3], strokeWidth=1.3)
    return [lines, names.encode(y=alt.value(0), text="label:N")]


def _facts(sizes: pa.Table, delays: pa.Table) -> list[str]:
    rejected = pc.sum(delays.filter(pc.not_equal(delays["outcome"], "accepted"))["messages"]).as_py() or 0
    messages = pc.sum(sizes["message_count"]).as_py() or 0
    counted = {row["values"]: row["counts"] for row in sizes["open_reason"].value_counts().to_pylist()}
    opened = ", ".join(f"{why} ({counted[name]:,})" for name, why in OPENINGS.items() if name in counted)
    facts = f"{messages:,} messages in {sizes.num_rows:,} batches, {rejected:,} rejected with a known delay."
    return [facts, f"Windows were opened by {opened}."] if opened else [facts]

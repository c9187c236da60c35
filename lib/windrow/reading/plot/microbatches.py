"""Draw microbatches in order: their messages, the durations of their phases, their lag, and ticks and other kinds.

Above `MAX_BARS` microbatches, a bar stands for several consecutive ones.
"""

from __future__ import annotations

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFoundError
from windrow.reading.plot import bins, theme
from windrow.reading.plot.bins import SHORT_COUNTS, SHORT_TIMES, time_text

MAX_BARS, MIN_BARS = 200, 12
MESSAGES = {"accepted": theme.ACCEPTED, "rejected": theme.REJECTED}
COUNTED = ("message_count", *MESSAGES, "opened", "closed")
AGAIN = "tried again"
# How a bar sums up its microbatches, by column and aggregate function.
FIGURES = {
    ("microbatch", "min"): "first",
    ("microbatch", "max"): "last",
    ("started_at", "min"): "started_at",
    ("newest_ms", "min"): "newest_ms",
    ("oldest_ms", "max"): "oldest_ms",
    **{(name, "sum"): name for name in COUNTED},
    **{(f"{name}_ms", "mean"): name for name in theme.PHASES},
}
USUAL, FAR = 0.9, 3  # the share of bars that are usual; a bar FAR times as long is cut off


def microbatches(history: pa.Table, *, title: str = "Microbatches") -> alt.VConcatChart:
    """Return the picture of what `reading.history` found. Raises NotFoundError for an empty history."""
    if not history.num_rows:
        raise NotFoundError("there is no microbatch to draw", "Run `windrow run` first.")
    numbers = history["microbatch"].to_numpy()
    each = next(step for step in bins.STEPS if step * MAX_BARS > numbers[-1] - numbers[0])
    left = numbers[0] + (numbers - numbers[0]) // each * each - 0.5
    placed = history.append_column("left", pa.array(left)).append_column("right", pa.array(left + each))
    bars, events = _bars(placed), _events(placed)
    scale = alt.Scale(domain=[left[0], max(left[-1] + each, left[0] + MIN_BARS * each)], nice=False)
    x = alt.X("left:Q", scale=scale, axis=alt.Axis(title=None, format=",d", tickMinStep=1, grid=False))
    panels = [_messages(bars, x), _phases(history, x)]
    panels += [_lag(bars, x)] if bars["newest_ms"].null_count < bars.num_rows else []
    panels += [_mark_others(events, x)] if events.num_rows else []
    data = {"bars": bars.to_pylist(), "events": events.to_pylist()}
    picture = alt.vconcat(*panels, spacing=20).resolve_scale(color="independent")
    return theme.finish_picture(picture, title, _facts(history, each), data)


def _bars(placed: pa.Table) -> pa.Table:
    """Return a row for each bar: the sums of its microbatches' counts, and the means of their durations."""
    grouped = placed.group_by(["left", "right"]).aggregate(list(FIGURES)).sort_by("left")
    bars = grouped.rename_columns(["left", "right", *FIGURES.values()])
    return bars.set_column(bars.column_names.index("started_at"), "started_at", bars["started_at"].cast(pa.string()))


def _events(placed: pa.Table) -> pa.Table:
    """Return which bars have microbatches of a kind other than data or with several attempts, and how many."""
    kinds = placed.filter(pc.not_equal(placed["kind"], "data")).select(["left", "right", "kind"])
    again = placed.filter(pc.greater(placed["attempt"], 1)).select(["left", "right", "kind"])
    again = again.set_column(2, "kind", pa.repeat(AGAIN, again.num_rows))
    counted = pa.concat_tables([kinds, again]).group_by(["left", "right", "kind"]).aggregate([([], "count_all")])
    named = counted.rename_columns(["left", "right", "name", "microbatches"])
    return named.sort_by([("left", "ascending"), ("name", "ascending")])


def _stack(colours: dict[str, str], x: alt.X, y: alt.Y) -> alt.Chart:
    """Draw the columns of these names stacked; the tooltip of any segment describes its whole bar."""
    legend = theme.colour_encoding("name", colours, orient="right", direction="vertical")
    tooltip = theme.tooltips("name", "value", "first", "last", "started_at", *COUNTED)
    folded = theme.chart("bars").transform_fold([*colours], as_=["name", "value"])
    ordered = folded.transform_calculate(order=f"indexof({[*colours]}, datum.name)").mark_bar(clip=True)
    return ordered.encode(
        x=x.bin("binned"), x2="right", y=y.stack("zero"), color=legend, order="order:Q", tooltip=tooltip
    )


def _messages(bars: pa.Table, x: alt.X) -> alt.LayerChart:
    words = ", ".join(f"{pc.sum(bars[name]).as_py():,} {name}" for name in MESSAGES)
    axis = alt.Axis(title=None, labelExpr=SHORT_COUNTS, tickCount=4)
    return theme.panel(f"Messages: {words}", 130, _stack(MESSAGES, x, alt.Y("value:Q", axis=axis)))


def _phases(history: pa.Table, x: alt.X) -> alt.LayerChart:
    """Draw the phases stacked; bars far longer than the others are cut off."""
    took = np.sum([pc.fill_null(history[f"{name}_ms"], 0.0).to_numpy() for name in theme.PHASES], axis=0)
    usual, most = float(np.quantile(took, USUAL, method="lower")), float(took.max())
    top = 1.5 * usual if most > FAR * usual > 0 else most * 1.05
    axis = alt.Axis(title=None, labelExpr=SHORT_TIMES, tickCount=4)
    stack = _stack(theme.PHASES, x, alt.Y("value:Q", axis=axis, scale=alt.Scale(domain=[0, top], nice=False)))
    median = time_text(float(np.median(took)))
    return theme.panel(f"How long a microbatch took: median {median}, longest {time_text(most)}", 170, stack)


def _lag(bars: pa.Table, x: alt.X) -> alt.LayerChart:
    """Draw the age of the newest message read: of the source furthest ahead, and of the one furthest behind."""
    newest, oldest = (bars[name].drop_null().to_numpy().astype(np.float64) for name in ("newest_ms", "oldest_ms"))
    low, high = min(0.0, float(newest.min())), max(1_000.0, 1.3 * float(oldest.max()))
    scale = alt.Scale(type="symlog", constant=1_000, domain=[low, high], nice=False)
    axis = bins.ticks(low, high, 1_000)
    near, far = (alt.Y(name, type="quantitative", scale=scale, axis=axis) for name in ("newest_ms", "oldest_ms"))
    lag = theme.chart("bars").transform_filter("isValid(datum.newest_ms)").encode(x=x, x2="right")
    most, last = (time_text(value) for value in (oldest.max(), oldest[-1]))
    text = "Lag at the start, of the source furthest behind (dark) and furthest ahead (light)"
    return theme.panel(
        f"{text}: at most {most}, at last {last}",
        110,
        lag.mark_rect(color=theme.FAINT).encode(y=near, y2="oldest_ms"),
        lag.mark_rule(color=theme.MUTED, strokeWidth=1.5).encode(y=near),
        lag.mark_rule(color=theme.INK, strokeWidth=2.5).encode(y=far),
    )


def _mark_others(events: pa.Table, x: alt.X) -> alt.LayerChart:
    """Mark microbatches of a kind other than data, or that took more than one attempt."""
    there = set(events["name"].to_pylist())
    colours = {name: colour for name, colour in (theme.KINDS | {AGAIN: theme.REJECTED}).items() if name in there}
    y = alt.Y("name:N", sort=list(colours), axis=alt.Axis(title=None, grid=True))
    marks = theme.chart("events").transform_calculate(left="(datum.left + datum.right) / 2")
    marks = marks.mark_point(shape="diamond", filled=True, size=110, opacity=1)
    color = theme.colour_encoding("name", colours).legend(None)
    marks = marks.encode(x=x, y=y, color=color, tooltip=theme.tooltips("name", "microbatches"))
    return theme.panel("What else was committed", 22 * len(colours), marks)


def _facts(history: pa.Table, each: int) -> list[str]:
    kinds = {count["values"]: count["counts"] for count in history["kind"].value_counts().to_pylist()}
    of = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("data", *theme.KINDS) if kind in kinds)
    engines = " and ".join(sorted(set(history["engine"].to_pylist())))
    opened, closed = (pc.sum(history[name]).as_py() for name in ("opened", "closed"))
    did = f"opened {opened:,} batches and closed {closed:,}"
    since, last = (pc.strftime(history["started_at"][at], "%Y-%m-%d %H:%M").as_py() for at in (0, -1))
    facts = [f"{history.num_rows:,} microbatches ({of}) of the {engines} engine {did}, from {since} to {last} UTC."]
    if each > 1:
        facts.append(f"Each bar stands for {each:,} microbatches: the sum of their messages, the mean of their phases.")
    if unknown := history["commit_ms"].null_count:
        facts.append(f"The commits of {unknown:,} microbatches are not drawn: Delta's log no longer has them.")
    return facts

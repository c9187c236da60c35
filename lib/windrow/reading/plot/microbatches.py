"""Draw microbatches in order: their messages, the duration of their phases, their lag, and ticks and other kinds.

Above `MAX_BARS` microbatches, a bar stands for several consecutive ones.
"""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFound
from windrow.model.messages import microseconds
from windrow.reading.plot import bins
from windrow.reading.plot.bins import SHORT_COUNTS, SHORT_TIMES, time_text
from windrow.reading.plot.theme import (
    ACCEPTED,
    FAINT,
    INK,
    KINDS,
    MUTED,
    PHASES,
    REJECTED,
    chart,
    coloured,
    finished,
    panel,
    tips,
)

MAX_BARS, MAX_TICKS, MIN_BARS, DAY_US = 200, 10, 12, 86_400_000_000
MESSAGES = {"accepted": ACCEPTED, "rejected": REJECTED}
COUNTED = ("messages", *MESSAGES, "opened", "closed")
AGAIN, UP = "tried again", "'\N{UPWARDS ARROW} '"
# What a bar shows of its microbatches, by column and function.
FIGURES = {
    ("microbatch", "first"): "first_number",
    ("microbatch", "last"): "last_number",
    ("started_at", "first"): "started_at",
    ("newest_ms", "min"): "newest_ms",
    ("oldest_ms", "max"): "oldest_ms",
    **{(name, "sum"): name for name in COUNTED},
    **{(f"{name}_ms", "mean"): f"{name}_ms" for name in PHASES},
}
# Bars leave room between them; lines across them do not.
SIDES = {"left": "datum.bar + 0.06", "middle": "datum.bar + 0.5", "right": "datum.bar + 0.94", "next": "datum.bar + 1"}
USUAL, FAR = 0.9, 3  # the share of usual bars; a bar this many times as long as those is cut off
MAX_LABELS = 3  # of bars that are cut off, which say how long they are


def microbatches(history: pa.Table, *, title: str = "Microbatches") -> alt.VConcatChart:
    """Return the picture of what `reading.history` found. Raises NotFound for an empty history."""
    if not history.num_rows:
        raise NotFound("there is no microbatch to draw", "`windrow run` makes some.")
    each = next(step for step in bins.STEPS if step * MAX_BARS >= history.num_rows)
    bars, events = _bars(history, each), _events(history, each)
    took = np.sum([pc.fill_null(history[f"{name}_ms"], 0.0).to_numpy() for name in PHASES], axis=0)
    panels = [_messages(bars), _phases(bars, took)]
    panels += [_lag(bars)] if bars["newest_ms"].null_count < bars.num_rows else []
    panels += [_others(events)] if events.num_rows else []
    axis: dict[str, Any] = _axis(bars, history, each)
    axes = [*[axis | {"labels": False, "ticks": False, "title": None}] * (len(panels) - 1), axis]
    scale = alt.Scale(domain=[0, max(bars.num_rows, MIN_BARS)], nice=False)
    along = [alt.X("left:Q", scale=scale, axis=alt.Axis(**axis)) for axis in axes]
    shared = [drawn.encode(x=x) for drawn, x in zip(panels, along, strict=True)]
    stacks = {"messages": {name: name for name in MESSAGES}, "phases": {name: f"{name}_ms" for name in PHASES}}
    data = {"bars": bars, "events": events} | {name: _stacked(bars, columns) for name, columns in stacks.items()}
    picture = alt.vconcat(*shared, spacing=20).resolve_scale(color="independent")
    return finished(picture, title, _facts(history, each), {name: table.to_pylist() for name, table in data.items()})


def _bars(history: pa.Table, each: int) -> pa.Table:
    """Return a row for each bar: the sums of its microbatches' counts, and the means of their durations."""
    numbered = history.append_column("bar", pa.array(np.arange(history.num_rows) // each))
    grouped = numbered.group_by("bar", use_threads=False).aggregate(list(FIGURES))
    bars = grouped.rename_columns(["bar", *FIGURES.values()])
    columns = {name: bars[name] for name in bars.column_names} | {"started_at": bars["started_at"].cast(pa.string())}
    phases = {f"{name}_ms": pc.fill_null(bars[f"{name}_ms"], 0.0) for name in PHASES}
    return pa.table(columns | phases | {"took_ms": sum(phase.to_numpy() for phase in phases.values())})


def _stacked(bars: pa.Table, columns: dict[str, str]) -> pa.Table:
    """Return a row for each bar and column above 0: its name, value, and base and top in the stack."""
    tops, parts = np.zeros(bars.num_rows), []
    for name, column in columns.items():
        value = bars[column].to_numpy().astype(np.float64)
        part = {"bar": bars["bar"], "name": pa.repeat(name, bars.num_rows), "value": value, "base": tops}
        tops = tops + value
        parts.append(pa.table(part | {"top": tops}))
    table = pa.concat_tables(parts)
    return table.filter(pc.greater(table["value"], 0))


def _events(history: pa.Table, each: int) -> pa.Table:
    """Return which bars have microbatches of other kinds than data, or with several attempts, and how many."""
    bar = pa.array(np.arange(history.num_rows) // each)
    of_kind = pa.table({"bar": bar, "name": history["kind"]}).filter(pc.not_equal(history["kind"], "data"))
    again = pa.table({"bar": bar, "name": pa.repeat(AGAIN, history.num_rows)}).filter(pc.greater(history["attempt"], 1))
    counted = pa.concat_tables([of_kind, again]).group_by(["bar", "name"]).aggregate([([], "count_all")])
    named = counted.rename_columns(["bar", "name", "microbatches"])
    return named.sort_by([("bar", "ascending"), ("name", "ascending")])


def _messages(bars: pa.Table) -> alt.LayerChart:
    words = ", ".join(f"{pc.sum(bars[name]).as_py():,} {name}" for name in MESSAGES)
    y = alt.Y("base:Q", axis=alt.Axis(title=None, labelExpr=SHORT_COUNTS, tickCount=4))
    return panel(f"Messages: {words}", 130, _stack("messages", y, MESSAGES))


def _phases(bars: pa.Table, each_took: npt.NDArray[np.float64]) -> alt.LayerChart:
    """Draw the phases stacked; bars far longer than the others are cut off, and the longest of them are labelled."""
    took = bars["took_ms"].to_numpy()
    usual = float(np.quantile(took, USUAL, method="lower")) or float(took.max())
    top = 1.5 * usual if took.max() > FAR * usual else float(took.max()) * 1.05
    axis = alt.Axis(title=None, labelExpr=SHORT_TIMES, tickCount=4)
    stack = _stack("phases", alt.Y("base:Q", axis=axis, scale=alt.Scale(domain=[0, top], nice=False)), PHASES)
    longest = np.argsort(-took, kind="stable")[: min(MAX_LABELS, int((took > top).sum()))].tolist()
    labels = _marks("bars").mark_text(baseline="bottom", dy=-2, align="left").encode(y=alt.value(0), text="word:N")
    labels = labels.transform_filter(f"indexof({longest}, datum.bar) >= 0")
    labels = labels.transform_calculate(word=f"{UP} + format(datum.took_ms / 1000, '.3~r') + ' s'")
    median, most = time_text(float(np.median(each_took))), time_text(each_took.max())
    return panel(f"How long a microbatch took: median {median}, longest {most}", 170, stack, labels)


def _lag(bars: pa.Table) -> alt.LayerChart:
    """Draw the age of the newest message read: of the source furthest ahead, and of the one furthest behind."""
    newest, oldest = (bars[name].drop_null().to_numpy().astype(np.float64) for name in ("newest_ms", "oldest_ms"))
    low, high = min(0.0, float(newest.min())), max(1_000.0, 1.3 * float(oldest.max()))
    wide = low < 0 or high > bins.WIDE * max(float(np.median(oldest)), 1.0)
    kind: dict[str, Any] = {"type": "symlog", "constant": 1_000} if wide else {}
    scale = alt.Scale(domain=[low, high], nice=False, **kind)
    axis = alt.Axis(title=None, **bins.ticks(low, high, 1_000) if wide else {"labelExpr": SHORT_TIMES, "tickCount": 4})
    near, far = (alt.Y(name, type="quantitative", scale=scale, axis=axis) for name in ("newest_ms", "oldest_ms"))
    lag = _marks("bars").transform_filter("isValid(datum.newest_ms)").transform_calculate(left="datum.bar")
    lag = lag.encode(x2="next")
    most, last = (time_text(value) for value in (oldest.max(), oldest[-1]))
    text = "Lag at the start, of the source furthest behind (dark) and furthest ahead (light)"
    return panel(
        f"{text}: at most {most}, at last {last}",
        110,
        lag.mark_rect(color=FAINT).encode(y=near, y2="oldest_ms"),
        lag.mark_rule(color=MUTED, strokeWidth=1.5).encode(y=near),
        lag.mark_rule(color=INK, strokeWidth=2.5).encode(y=far),
    )


def _others(events: pa.Table) -> alt.LayerChart:
    """Mark microbatches that are not of data, or took more than one attempt."""
    there = set(events["name"].to_pylist())
    colours = {name: colour for name, colour in (KINDS | {AGAIN: REJECTED}).items() if name in there}
    y = alt.Y("name:N", sort=list(colours), axis=alt.Axis(title=None, grid=True))
    marks = _marks("events").mark_point(shape="diamond", filled=True, size=110, opacity=1)
    marks = marks.encode(y=y, color=coloured("name", colours).legend(None), tooltip=tips("name", "microbatches"))
    marks = marks.transform_calculate(left="datum.middle")
    return panel("What else was committed", 22 * len(colours), marks)


def _stack(data: str, y: alt.Y, colours: dict[str, str]) -> alt.Chart:
    """Draw stacked bars; the tooltip of any segment describes its whole bar."""
    tooltip = tips("name", "value", "first_number", "last_number", "started_at", *COUNTED)
    legend = coloured("name", colours, orient="right", direction="vertical")
    fields = ["first_number", "last_number", "started_at", *COUNTED]
    bars = _marks(data).transform_lookup("bar", from_=alt.LookupData(alt.NamedData("bars"), key="bar", fields=fields))
    return bars.mark_rect(clip=True).encode(x2="right", y=y, y2="top", color=legend, tooltip=tooltip)


def _marks(data: str) -> alt.Chart:
    return chart(data).transform_calculate(**SIDES)


def _axis(bars: pa.Table, history: pa.Table, each: int) -> dict[str, Any]:
    """Return the axis, which labels some bars with their first microbatch and its start."""
    step = next(step for step in bins.STEPS if step * MAX_TICKS >= bars.num_rows)
    begun = microseconds(history["started_at"])
    days = (begun[-1] // DAY_US) - (begun[0] // DAY_US)
    shown = np.arange(0, bars.num_rows, step)
    whole = history["started_at"].cast(pa.timestamp("s", tz="UTC"), safe=False)
    at = pc.strftime(whole.take(pa.array(shown * each)), "%d %b %H:%M" if days else "%H:%M:%S").to_pylist()
    numbers = bars["first_number"].take(pa.array(shown)).to_pylist()
    words = {f"{bar + 0.5}": [f"{number:,}", time] for bar, number, time in zip(shown, numbers, at, strict=True)}
    day = "" if days else f", {pc.strftime(history['started_at'][0], '%Y-%m-%d').as_py()}"
    return {
        "values": [float(place) for place in words],
        "labelExpr": f"({json.dumps(words)})[format(datum.value, '.1f')]",
        "title": f"microbatch, and when it started (UTC{day})",
    }


def _facts(history: pa.Table, each: int) -> list[str]:
    total = {name: pc.sum(history[name]).as_py() for name in COUNTED}
    kinds = {count["values"]: count["counts"] for count in history["kind"].value_counts().to_pylist()}
    of = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("data", *KINDS) if kind in kinds)
    engines = " and ".join(sorted(set(history["engine"].to_pylist())))
    did = f"opened {total['opened']:,} batches and closed {total['closed']:,}"
    facts = [f"{history.num_rows:,} microbatches ({of}) of the {engines} engine {did}."]
    if each > 1:
        facts.append(f"Each bar stands for {each:,} microbatches: the sum of their messages, the mean of their phases.")
    if unknown := history["commit_ms"].null_count:
        facts.append(f"The commits of {unknown:,} microbatches are not drawn: Delta's log no longer has them.")
    return facts

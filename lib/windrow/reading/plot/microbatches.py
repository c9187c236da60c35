"""Draw microbatches in order: their messages, the duration of their phases, their lag, and ticks and other kinds.

Above `MOST_BARS` microbatches, a bar stands for several consecutive ones.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

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
    WIDTH,
    Spec,
    coloured,
    drawn,
    mark,
    panel,
    tips,
    titled,
)

if TYPE_CHECKING:
    import altair as alt

Floats = npt.NDArray[np.float64]

MOST_BARS, MOST_TICKS, FEWEST, DAY = 200, 10, 12, 86_400_000_000
MESSAGES = {"accepted": ACCEPTED, "rejected": REJECTED}
COUNTED = ("messages", *MESSAGES, "opened", "closed")
AGAIN, UP = "tried again", "'\N{UPWARDS ARROW} '"
LAGS, LOOKED_UP = ("newest_ms", "oldest_ms"), ("first_number", "last_number", "started_at", *COUNTED)
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
SIDES = [
    {"calculate": f"datum.bar + {place}", "as": name}
    for name, place in {"left": 0.06, "middle": 0.5, "right": 0.94, "next": 1}.items()
]
USUAL, FAR = 0.9, 3  # the share of usual bars; a bar this many times as long as those is cut off
NAMED, WORDS = 3, 18  # how many cut bars have a label with their duration; there is room for so many labels


def microbatches(history: pa.Table, *, title: str = "Microbatches") -> alt.VConcatChart:
    """Return the picture of what `reading.history` found. Raises MissingExtra, or NotFound for an empty history."""
    if not history.num_rows:
        raise NotFound("there is no microbatch to draw", "`windrow run` makes some.")
    each = next(step for step in bins.STEPS if step * MOST_BARS >= history.num_rows)
    bars, events = _bars(history, each), _events(history, each)
    panels = [partial(_messages, bars), partial(_phases, bars, _took(history))]
    panels += [partial(_lag, bars)] if _known(bars, "newest_ms").size else []
    panels += [partial(_others, events)] if events.num_rows else []
    axis = _axis(bars, history, each)
    axes = [*[axis | {"labels": False, "ticks": False, "title": None}] * (len(panels) - 1), axis]
    spec = {
        "title": titled(title, *_facts(history, each)),
        "vconcat": [draw(_across(bars, axis)) for draw, axis in zip(panels, axes, strict=True)],
        "spacing": 20,
        "resolve": {"scale": {"color": "independent"}},
    }
    stacks = {"messages": {name: name for name in MESSAGES}, "phases": {name: f"{name}_ms" for name in PHASES}}
    data = {"bars": bars, "events": events} | {name: _stacked(bars, columns) for name, columns in stacks.items()}
    return drawn(spec, {name: table.to_pylist() for name, table in data.items()})


def _bars(history: pa.Table, each: int) -> pa.Table:
    """Return a row for each bar: the sums of its microbatches' counts, and the means of their durations."""
    numbered = history.append_column("bar", pa.array(np.arange(history.num_rows) // each))
    bars = (
        numbered.group_by("bar", use_threads=False).aggregate(list(FIGURES)).rename_columns(["bar", *FIGURES.values()])
    )
    phases = {f"{name}_ms": pc.fill_null(bars[f"{name}_ms"], 0.0) for name in PHASES}
    columns = {name: bars[name] for name in bars.column_names} | phases
    columns["started_at"] = bars["started_at"].cast(pa.string())
    return pa.table(columns | {"took_ms": sum(phase.to_numpy() for phase in phases.values())})


def _stacked(bars: pa.Table, columns: dict[str, str]) -> pa.Table:
    """Return a row for each bar and column above 0: its name, value, and base and top in the stack."""
    tops = np.zeros(bars.num_rows)
    parts = []
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


def _messages(bars: pa.Table, x: Spec) -> Spec:
    """Draw how many messages were accepted and rejected."""
    words = ", ".join(f"{pc.sum(bars[name]).as_py():,} {name}" for name in MESSAGES)
    y = {"axis": {"title": None, "labelExpr": SHORT_COUNTS, "tickCount": 4}}
    return _panel(f"Messages: {words}", 130, _stack("messages", x, y, MESSAGES))


def _phases(bars: pa.Table, each_took: Floats, x: Spec) -> Spec:
    """Draw the phases stacked; bars far longer than the others are cut off, and the longest of them are labelled."""
    took = bars["took_ms"].to_numpy()
    usual = float(np.quantile(took, USUAL, method="lower")) or float(took.max())
    top = 1.5 * usual if took.max() > FAR * usual else float(took.max()) * 1.05
    axis = {"title": None, "labelExpr": SHORT_TIMES, "tickCount": 4}
    y = {"axis": axis, "scale": {"domain": [0, top], "nice": False}}
    beyond = {"filter": f"indexof({_named(took, top)}, datum.bar) >= 0"}
    label = {"calculate": f"{UP} + format(datum.took_ms / 1000, '.3~r') + ' s'", "as": "word"}
    word = {"x": x | {"field": "left"}, "y": {"value": 0}, "text": {"field": "word"}}
    over = _mark("bars", "text", word, beyond, label, baseline="bottom", dy=-2, align="left")
    median, longest = time_text(float(np.median(each_took))), time_text(each_took.max())
    text = f"How long a microbatch took: median {median}, longest {longest}"
    return _panel(text, 170, _stack("phases", x, y, PHASES), over)


def _named(took: Floats, top: float) -> list[int]:
    """Return the longest bars beyond the top whose labels do not overlap."""
    room, named = max(len(took), FEWEST) / WORDS, list[int]()
    for bar in np.argsort(-took, kind="stable")[: int((took > top).sum())].tolist():
        if len(named) < NAMED and all(abs(bar - other) >= room for other in named):
            named.append(bar)
    return named


def _lag(bars: pa.Table, x: Spec) -> Spec:
    """Draw the age of the newest message read: of the source furthest ahead, and of the one furthest behind."""
    newest, oldest = _known(bars, "newest_ms"), _known(bars, "oldest_ms")
    low, high = min(0.0, float(newest.min())), max(1_000.0, 1.3 * float(oldest.max()))
    wide = low < 0 or high > bins.WIDE * max(float(np.median(oldest)), 1.0)
    scale = {"domain": [low, high], "nice": False} | ({"type": "symlog", "constant": 1_000} if wide else {})
    axis = (bins.ticks(low, high, least=1_000) if wide else bins.even_ticks(high)) | {"title": None}
    near, far = ({"field": name, "type": "quantitative", "scale": scale, "axis": axis} for name in LAGS)
    ends = {"x": x | {"field": "bar"}, "x2": {"field": "next"}}
    there = {"filter": "isValid(datum.newest_ms)"}
    most, last = (time_text(value) for value in (oldest.max(), oldest[-1]))
    text = "Lag at the start, of the source furthest behind (dark) and furthest ahead (light)"
    return _panel(
        f"{text}: at most {most}, at last {last}",
        110,
        _mark("bars", "rect", ends | {"y": near, "y2": {"field": "oldest_ms"}}, there, color=FAINT),
        _mark("bars", "rule", ends | {"y": near}, there, color=MUTED, strokeWidth=1.5),
        _mark("bars", "rule", ends | {"y": far}, there, color=INK, strokeWidth=2.5),
    )


def _others(events: pa.Table, x: Spec) -> Spec:
    """Mark microbatches that are not of data, or took more than one attempt."""
    there = set(events["name"].to_pylist())
    colours = {name: colour for name, colour in (KINDS | {AGAIN: REJECTED}).items() if name in there}
    y = {"field": "name", "type": "nominal", "sort": list(colours), "axis": {"title": None, "grid": True}}
    colour = coloured("name", colours) | {"legend": None}
    encoding = {"x": x | {"field": "middle"}, "y": y, "color": colour, "tooltip": tips("name", "microbatches")}
    marks = _mark("events", "point", encoding, shape="diamond", filled=True, size=110, opacity=1)
    return _panel("What else was committed", 22 * len(colours), marks)


def _panel(text: str, height: int, *layer: Spec) -> Spec:
    return {"title": panel(text), "width": WIDTH, "height": height, "layer": list(layer)}


def _stack(data: str, x: Spec, y: Spec, colours: dict[str, str]) -> Spec:
    """Draw stacked bars; the tooltip of any segment describes its whole bar."""
    sides = {"x": x | {"field": "left"}, "x2": {"field": "right"}}
    heights = {"y": {"field": "base", "type": "quantitative", **y}, "y2": {"field": "top"}}
    legend = coloured("name", colours, orient="right", direction="vertical")
    tooltip = tips("name", "value", "first_number", "last_number", "started_at", *COUNTED)
    lookup = {"lookup": "bar", "from": {"data": {"name": "bars"}, "key": "bar", "fields": [*LOOKED_UP]}}
    return _mark(data, "rect", sides | heights | {"color": legend, "tooltip": tooltip}, lookup, clip=True)


def _mark(data: str, kind: str, encoding: Spec, *transform: Spec, **look: Any) -> Spec:
    return {"data": {"name": data}, "transform": [*SIDES, *transform]} | mark(kind, encoding, **look)


def _across(bars: pa.Table, axis: Spec) -> Spec:
    scale = {"domain": [0, max(bars.num_rows, FEWEST)], "nice": False}
    return {"type": "quantitative", "scale": scale, "axis": axis}


def _axis(bars: pa.Table, history: pa.Table, each: int) -> Spec:
    """Return the axis, which labels some bars with their first microbatch and its start."""
    step = next(step for step in bins.STEPS if step * MOST_TICKS >= bars.num_rows)
    begun = microseconds(history["started_at"])
    days = (begun[-1] // DAY) - (begun[0] // DAY)
    face = "%d %b %H:%M" if days else "%H:%M:%S"
    shown = np.arange(0, bars.num_rows, step)
    whole = history["started_at"].cast(pa.timestamp("s", tz="UTC"), safe=False)
    at = pc.strftime(whole.take(pa.array(shown * each)), face).to_pylist()
    numbers = bars["first_number"].take(pa.array(shown)).to_pylist()
    words = {f"{bar + 0.5}": [f"{number:,}", time] for bar, number, time in zip(shown, numbers, at, strict=True)}
    day = "" if days else f", {pc.strftime(history['started_at'][0], '%Y-%m-%d').as_py()}"
    return {
        "values": [float(place) for place in words],
        "labelExpr": f"({json.dumps(words)})[format(datum.value, '.1f')]",
        "title": f"microbatch, and when it started (UTC{day})",
    }


def _facts(history: pa.Table, each: int) -> list[str]:
    """Say what was drawn, and what a bar stands for."""
    total = {name: pc.sum(history[name]).as_py() for name in COUNTED}
    kinds = {count["values"]: count["counts"] for count in history["kind"].value_counts().to_pylist()}
    of = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("data", *KINDS) if kind in kinds)
    engines = " and ".join(sorted(set(history["engine"].to_pylist())))
    did = f"opened {total['opened']:,} batches and closed {total['closed']:,}"
    facts = [f"{history.num_rows:,} microbatches ({of}) of the {engines} engine {did}."]
    if each > 1:
        facts.append(f"Each bar stands for {each:,} microbatches: the sum of their messages, the mean of their phases.")
    unknown = history["commit_ms"].null_count
    if unknown:
        facts.append(f"The commits of {unknown:,} microbatches are not drawn: Delta's log no longer has them.")
    return facts


def _took(history: pa.Table) -> Floats:
    """Return how long each microbatch took in milliseconds, as far as it is known."""
    return np.sum([pc.fill_null(history[f"{name}_ms"], 0.0).to_numpy() for name in PHASES], axis=0)


def _known(table: pa.Table, column: str) -> Floats:
    """Return the values that are not NULL."""
    return table[column].drop_null().to_numpy().astype(np.float64)

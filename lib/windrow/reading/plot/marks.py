"""The marks of a timeline in Vega-Lite: two time lines for each stream, boxes for windows, and lines for messages.

Each stream has a row whose bottom is `foot`; everything in the row is at a fixed height above it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.messages import times
from windrow.reading.plot.theme import GRID, INK, MUTED, WIDTH, WINDOWS, Spec, coloured, mark, outcomes, tips

LANES, WINDOW = ("event_time", "processing_time"), ("window_start", "window_end", "timeout", "closed_at")
MOMENTS = {*LANES, *WINDOW, "moment"}
BATCH = ("id", "state", *WINDOW, "close_reason", "opened_by", "message_count", "bytes")
MESSAGE, COUNT = ("type", "outcome", *LANES, "delay_seconds", "id"), ("outcome", "messages")
FACE = "time(datum.value) % 864e5 ? time(datum.value) % 1e3 ? '%H:%M:%S.%L' : '%H:%M:%S' : '%d %b'"
# The heights of things in a row: 0 is its foot, 1 the foot of the row above.
HEIGHTS = {
    "box_top": 0.95,
    "above": 0.83,
    "box_bottom": 0.71,
    "name": 0.53,
    "below": 0.34,
    "bars": 0.23,
    "bottom": 0.04,
}
LABELS = {"above": "event time", "below": "processing time"}
FEW, ROW_HEIGHT, ONLY_ROW_HEIGHT = 200, 210, 330


def frame(rows: int, begin: int, end: int, batches: str) -> Spec:
    """Return the two time lines of each stream and the scales of all marks; `batches` labels the boxes below."""
    days = " to ".join(sorted({day[:10] for day in times(np.array([begin, end])).cast(pa.string()).to_pylist()}))
    time = {"datum": begin / 1e3, "type": "temporal", "scale": {"type": "utc", "domain": [begin / 1e3, end / 1e3]}}
    height = {"type": "quantitative", "axis": None, "scale": {"domain": [0, rows]}}
    look: Spec = {"align": "right", "clip": False, "limit": 220, "x": -10}
    name = {"y": height | {"field": "name"}, "text": {"field": "stream"}}
    marks = [_mark("text", name, fontWeight="bold", fontSize=13, **look)]
    for place, orient, word in (("above", "top", "Event time"), ("below", "bottom", "Processing time")):
        axis: Spec = {"orient": orient, "labelExpr": f"utcFormat(datum.value, {FACE})", "gridColor": GRID}
        axis |= {"title": f"{word} (UTC, {days})", "tickCount": 10, "grid": orient == "top"}
        line = {"x": time | {"axis": axis}, "x2": {"datum": end / 1e3}, "y": height | {"field": place}}
        marks.append(_mark("rule", line, color=INK))
    for place, text in (LABELS | {"batches": batches}).items():
        marks.append(_mark("text", {"y": height | {"field": place}, "text": {"value": text}}, color=MUTED, **look))
    zoom = {"name": "zoom", "bind": "scales", "select": {"type": "interval", "encodings": ["x"]}, "views": ["ways"]}
    separate = {"resolve": {"axis": {"x": "independent"}}}
    return {
        "width": WIDTH,
        "height": ONLY_ROW_HEIGHT if rows == 1 else ROW_HEIGHT * rows,
        "params": [zoom],
        "layer": [_group("streams", marks, {"batches": "datum.foot + 0.15"}) | separate],
        **separate,
    }


def windows(count: int, span: int, *, dense: bool) -> Spec:
    """Draw the window of each batch above; below, also the time until its timeout, with a mark where the batch closed.

    Above, parts of a window overlap; below, batches that overlap are on separate levels.
    """
    pixel, thin = span / WIDTH / 1e3, int(count <= FEW)  # milliseconds; edges would hide many boxes
    (fill, edge), (odd_fill, odd_edge) = WINDOWS
    look = {"fill": {"condition": {"test": "datum.odd", "value": odd_fill}, "value": fill}}
    look |= {"stroke": {"condition": {"test": "datum.odd", "value": odd_edge}, "value": edge}}
    boxes = (
        (_span("window_start", "low", "window_end", "box_top") | look, 0.85, 0.15),
        (_span("window_start", "bar_low", "window_end", "bar_top") | look, 0.85, 0.3),
        (_span("window_end", "bar_low", "timeout", "bar_top") | look, 0.3, 0.1),
    )
    closed, still_open = "datum.state != 'open'", "datum.state == 'open'"
    marks = [_mark("rect", box, closed, fillOpacity=full, strokeWidth=thin) for box, full, _ in boxes]
    dashed: Spec = {"strokeDash": [5, 3], "strokeWidth": 1.2}
    marks += [_mark("rect", box, still_open, fillOpacity=faint, **dashed) for box, _, faint in boxes]
    end = _span("closed_at", "bar_low", None, "bar_top") | {"color": look["stroke"]}
    number = _span("window_start", "box_top") | {"text": {"field": "label"}}
    word = _span("window_end", "bar_middle") | {"text": {"value": "timeout"}}
    inside = {"align": "left", "dx": 5, "fontSize": 11, "color": MUTED}
    fits = f"datum.width > (14 + 7 * length(datum.label)) * {pixel}"
    marks += [
        _mark("rule", end, "isValid(datum.closed_at)", strokeWidth=1.5 + 1.5 * thin),
        _mark("text", number, fits, baseline="top", dy=5, **inside),
        _mark("text", word, f"datum.rest > {60 * pixel} && datum.levels < 4", **inside),
    ]
    return _group("batches", marks, _box_places(dense, pixel), tooltip=_tips(*BATCH))


def _box_places(dense: bool, pixel: float) -> dict[str, str]:
    """Return the positions of boxes in their row, and their labels."""
    top = "bars" if dense else "below"
    level = f"(datum.{top} - datum.bottom - 0.03) / datum.levels"
    return {
        "low": "datum.box_bottom + 0.03 * min(datum.part, 5)",
        "bar_top": f"datum.{top} - 0.03 - datum.level * {level}",
        "bar_low": f"datum.bar_top - 0.8 * {level}",
        "bar_middle": "(datum.bar_top + datum.bar_low) / 2",
        "width": "datum.window_end - datum.window_start",
        "rest": "datum.timeout - datum.window_end",
        "word": f"datum.width < {90 * pixel} ? '' : datum.message_count == 1 ? ' message' : ' messages'",
        "label": "format(datum.message_count, ',') + datum.word",
    }


def coverage() -> list[Spec]:
    """Draw the time covered by windows, and below how many batches are open, if there are too many for boxes."""
    box = _span("window_start", "box_bottom", "window_end", "box_top")
    tooltip = _tips("windows", "window_start", "window_end")
    shade = _mark("rect", box, color=WINDOWS[0][0], fillOpacity=0.6)
    bar = _span("moment", "bottom", "until", "high") | {"tooltip": _tips("open", "moment")}
    places = {"until": "datum.moment + datum.step", "high": "datum.bottom + 0.15 * datum.share"}
    return [
        _group("stretches", [shade], tooltip=tooltip),
        _group("open", [_mark("rect", bar, color=WINDOWS[0][0])], places),
    ]


def lines(messages: pa.Table) -> Spec:
    """Draw each message as a point on both time lines, joined by a line."""
    faint = float(np.clip(8 / np.sqrt(messages.num_rows), 0.15, 0.7))
    opacity = {"condition": {"test": "datum.rejected", "value": 0.9}, "value": faint}
    point: Spec = {"size": 45 if messages.num_rows <= FEW else 18, "fillOpacity": 0.9}
    marks = [
        _mark("rule", _span(LANES[0], "above", LANES[1], "below") | {"strokeOpacity": opacity}) | {"name": "ways"},
        _mark("circle", _span(LANES[0], "above"), **point),
        _mark("circle", _span(LANES[1], "below"), **point),
    ]
    return _group("messages", marks, color=_colour(messages), tooltip=_tips(*MESSAGE))


def bands(messages: pa.Table) -> Spec:
    """Draw messages with similar times as one band, and bars that count them on both time lines."""
    middles = {f"{name}_middle": f"datum.{name} + datum.step / 2" for name in LANES}
    size = {"field": "messages", "type": "quantitative", "scale": {"type": "sqrt", "range": [0.4, 4]}, "legend": None}
    way = _span("event_time_middle", "box_bottom", "processing_time_middle", "below") | {"size": size}
    marks = [_mark("rule", way | {"tooltip": _tips(*COUNT, *LANES)}, strokeOpacity=0.45) | {"name": "ways"}]
    for queue, bottom, top in ((LANES[0], "box_bottom", "above"), (LANES[1], "below", "bars")):
        place = ["stream", bottom, top, queue, f"{queue}_text", "step"]
        level = f"datum.{bottom} + 0.8 * (datum.{top} - datum.{bottom}) / datum.tallest * datum"
        total = {"op": "sum", "field": "messages", "as": "messages"}
        bar = _mark("rect", _span(queue, "low", "until", "high") | {"tooltip": _tips(*COUNT, queue)})
        bar["transform"] = [
            {"aggregate": [total], "groupby": [*place, "outcome", "rejected"]},
            {"stack": "messages", "as": ["less", "more"], "groupby": place, "sort": [{"field": "rejected"}]},
            {"joinaggregate": [{"op": "max", "field": "more", "as": "tallest"}], "groupby": ["stream"]},
            *_calculated({"low": f"{level}.less", "high": f"{level}.more", "until": f"datum.{queue} + datum.step"}),
        ]
        marks.append(bar)
    return _group("bands", marks, middles, color=_colour(messages))


def _group(data: str, marks: list[Spec], more: Mapping[str, str] | None = None, **encoding: Any) -> Spec:
    places = _calculated({name: f"datum.foot + {height}" for name, height in HEIGHTS.items()} | dict(more or {}))
    return {"data": {"name": data}, "transform": places, "encoding": encoding, "layer": marks}


def _calculated(expressions: dict[str, str]) -> list[Spec]:
    return [{"calculate": expression, "as": name} for name, expression in expressions.items()]


def _mark(kind: str, encoding: Spec, only: str = "true", **look: Any) -> Spec:
    return mark(kind, encoding, **{"clip": True} | look) | {"transform": [{"filter": only}]}


def _span(x: str, y: str, x2: str | None = None, y2: str | None = None) -> Spec:
    """Return the encoding of a point, or of a mark from one point to another."""
    place: Spec = {"x": {"field": x, "type": "temporal", "axis": None}, "y": {"field": y, "type": "quantitative"}}
    return place | {name: {"field": field} for name, field in (("x2", x2), ("y2", y2)) if field}


def _colour(messages: pa.Table) -> Spec:
    """Colour messages by what became of them; the legend counts them."""
    counted = {count["values"]: count["counts"] for count in messages["outcome"].value_counts().to_pylist()}
    accepted = {"accepted"}
    labels = {
        name: f"{'' if name in accepted else 'rejected: '}{name} ({number:,})" for name, number in counted.items()
    }
    label = f"({json.dumps(labels)})[datum.label]"
    return coloured("outcome", outcomes(counted), labelExpr=label, symbolType="circle")


def _tips(*names: str) -> list[Spec]:
    return tips(*(f"{name}_text" if name in MOMENTS else name for name in names))


def values(table: pa.Table) -> list[Spec]:
    """Return the rows for Vega, with times in milliseconds and also as text to the microsecond."""
    columns = {name: table[name] for name in table.column_names}
    for name in MOMENTS & columns.keys():
        milliseconds = pc.divide(columns[name].cast(pa.int64()), 1e3)
        columns |= {name: milliseconds, f"{name}_text": columns[name].cast(pa.string())}
    return list(pa.table(columns).to_pylist())

"""The marks of a timeline: two time lines for each stream, boxes for windows, and lines for messages.

Each stream has a row whose bottom is `foot`; everything in the row is at a fixed height above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.messages import times
from windrow.reading.plot import theme

LANES, WINDOW = ("event_time", "processing_time"), ("window_start", "window_end", "timeout_at", "closed_at")
MOMENTS = {*LANES, *WINDOW}
BATCH = ("id", "state", *WINDOW, "close_reason", "open_reason", "message_count", "bytes")
MESSAGE = ("type", "outcome", *LANES, "delay_seconds", "id")
FACE = "time(datum.value) % 864e5 ? time(datum.value) % 1e3 ? '%H:%M:%S.%L' : '%H:%M:%S' : '%d %b'"
# Heights within a row: 0 is its foot, 1 the foot of the row above.
HEIGHTS = {
    "box_top": 0.95, "above": 0.83, "box_bottom": 0.71, "name": 0.53, "below": 0.34, "batches": 0.15, "bottom": 0.04,
}  # fmt: skip
LEVEL = "(datum.below - datum.bottom - 0.03) / datum.levels"
BOX_PLACES = {
    "low": "datum.box_bottom + 0.03 * min(datum.part, 5)",
    "bar_top": f"datum.below - 0.03 - datum.level * {LEVEL}",
    "bar_low": f"datum.bar_top - 0.8 * {LEVEL}",
}
LABELS = {"above": "event time", "below": "processing time"}
FEW, ROW_HEIGHT, ONLY_ROW_HEIGHT = 200, 210, 330


def frame(rows: int, start: int, end: int, *, boxed: bool) -> alt.LayerChart:
    """Return the two time lines of each stream and the scales of all marks; `boxed` if windows are drawn."""
    days = " to ".join(sorted({day[:10] for day in times(np.array([start, end])).cast(pa.string()).to_pylist()}))
    scale = alt.Scale(type="utc", domain=[start / 1e3, end / 1e3])
    heights = alt.Scale(domain=[0, rows])
    y = {name: alt.Y(name, type="quantitative", axis=None, scale=heights) for name in HEIGHTS}
    streams = _rows("streams")
    words = streams.mark_text(align="right", clip=False, limit=220, x=-10, color=theme.MUTED)
    labels = LABELS | ({"batches": "until timeout"} if boxed else {})
    layers = [words.encode(y=y[place], text=alt.value(text)) for place, text in labels.items()]
    bold = streams.mark_text(align="right", clip=False, limit=220, x=-10, fontWeight="bold", fontSize=13)
    layers.append(bold.encode(y=y["name"], text="stream:N"))
    lanes: tuple[tuple[str, Literal["top", "bottom"], str], ...]
    lanes = (("above", "top", "Event time"), ("below", "bottom", "Processing time"))
    for place, orient, word in lanes:
        axis = alt.Axis(
            orient=orient, labelExpr=f"utcFormat(datum.value, {FACE})", gridColor=theme.GRID, grid=orient == "top",
            title=f"{word} (UTC, {days})", tickCount=10,
        )  # fmt: skip
        x = alt.XDatum(start / 1e3, type="temporal", scale=scale, axis=axis)
        layers.append(streams.mark_rule(color=theme.INK, clip=True).encode(x=x, x2=alt.X2Datum(end / 1e3), y=y[place]))
    return alt.LayerChart(layer=layers).resolve_axis(x="independent")


def windows(count: int, span: int) -> list[alt.Chart]:
    """Draw the window of each batch above; below, also the time until its timeout, with a mark where the batch closed.

    Above, parts of a window overlap; below, batches that overlap are on separate levels.
    """
    pixel, thin = span / theme.WIDTH / 1e3, int(count <= FEW)  # milliseconds; edges would hide many boxes
    (fill, edge), (odd_fill, odd_edge) = theme.WINDOWS
    stroke = alt.condition("datum.odd", alt.value(odd_edge), alt.value(edge))
    is_open, dashes = "datum.state == 'open'", alt.Scale(domain=["open", "closed"], range=[[5, 3], [1, 0]])
    batches = _rows("batches", BOX_PLACES).encode(tooltip=_tips(*BATCH))
    boxes = batches.mark_bar(clip=True, strokeWidth=thin).encode(
        fill=alt.condition("datum.odd", alt.value(odd_fill), alt.value(fill)),
        stroke=stroke,
        strokeDash=alt.StrokeDash("state:N", scale=dashes, legend=None),
    )
    layers = []
    for place, of_open, of_closed in (
        (("window_start", "low", "window_end", "box_top"), 0.15, 0.85),
        (("window_start", "bar_low", "window_end", "bar_top"), 0.3, 0.85),
        (("window_end", "bar_low", "timeout_at", "bar_top"), 0.1, 0.3),
    ):
        opacity = alt.condition(is_open, alt.value(of_open), alt.value(of_closed))
        layers.append(_at(boxes.encode(fillOpacity=opacity), *place))
    closings = batches.transform_filter("isValid(datum.closed_at)").encode(color=stroke)
    closings = closings.mark_rule(clip=True, strokeWidth=1.5 + 1.5 * thin)
    label = "format(datum.message_count, ',')"
    numbers = batches.transform_calculate(label=label).transform_filter(
        f"datum.window_end - datum.window_start > (14 + 7 * length(datum.label)) * {pixel}"
    )
    numbers = numbers.mark_text(baseline="top", dy=5, clip=True, align="left", dx=5, fontSize=11, color=theme.MUTED)
    layers.append(_at(closings, "closed_at", "bar_low", None, "bar_top"))
    return [*layers, _at(numbers.encode(text="label:N"), "window_start", "box_top")]


def lines(messages: pa.Table) -> list[alt.Chart]:
    """Draw each message as a point on both time lines, joined by a line."""
    faint = float(np.clip(8 / np.sqrt(messages.num_rows), 0.15, 0.7))
    look: dict[str, Any] = {"clip": True, "size": 45 if messages.num_rows <= FEW else 18, "fillOpacity": 0.9}
    points = _rows("messages").encode(color=_colour(messages, symbolType="circle"), tooltip=_tips(*MESSAGE))
    opacity = alt.condition("datum.rejected", alt.value(0.9), alt.value(faint))
    ways = points.mark_rule(clip=True).encode(strokeOpacity=opacity).add_params(_zoom())
    return [
        _at(ways, LANES[0], "above", LANES[1], "below"),
        _at(points.mark_circle(**look), LANES[0], "above"),
        _at(points.mark_circle(**look), LANES[1], "below"),
    ]


def draw_bands(messages: pa.Table) -> list[alt.Chart]:
    """Draw messages with similar times as one band, whose width grows with their number."""
    middles = {f"{name}_middle": f"datum.{name} + datum.step / 2" for name in LANES}
    colour = _colour(messages, symbolType="stroke", symbolStrokeWidth=4)
    rows = _rows("bands", middles).encode(color=colour, tooltip=_tips("outcome", "messages", *LANES))
    size = alt.Size("messages:Q", scale=alt.Scale(type="sqrt", range=[0.4, 4]), legend=None)
    ways = rows.mark_rule(clip=True, strokeOpacity=0.45).encode(size=size).add_params(_zoom())
    return [_at(ways, "event_time_middle", "above", "processing_time_middle", "below")]


def _rows(data: str, more: Mapping[str, str] | None = None) -> alt.Chart:
    places = {name: f"datum.foot + {height}" for name, height in HEIGHTS.items()}
    return theme.chart(data).transform_calculate(**places, **more or {})


def _at(mark: alt.Chart, x: str, y: str, x2: str | None = None, y2: str | None = None) -> alt.Chart:
    ends = {name: field for name, field in (("x2", x2), ("y2", y2)) if field}
    return mark.encode(x=alt.X(x, type="temporal", axis=None), y=alt.Y(y, type="quantitative", axis=None), **ends)


def _zoom() -> alt.Parameter:
    return alt.selection_interval(name="zoom", bind="scales", encodings=["x"])


def _colour(messages: pa.Table, **legend: Any) -> alt.Color:
    """Colour messages by what became of them; the legend counts them."""
    counted = {count["values"]: count["counts"] for count in messages["outcome"].value_counts().to_pylist()}
    kinds = {name: name if name == "accepted" else f"rejected: {name}" for name in counted}
    labels = {name: f"{kinds[name]} ({number:,})" for name, number in counted.items()}
    return theme.colour_encoding("outcome", theme.outcomes(counted), labels, **legend)


def _tips(*names: str) -> list[alt.Tooltip]:
    return theme.tooltips(*(f"{name}_text" if name in MOMENTS else name for name in names))


def values(table: pa.Table) -> theme.Rows:
    """Return the rows for Vega, with times in milliseconds and also as text to the microsecond."""
    columns = {name: table[name] for name in table.column_names}
    for name in MOMENTS & columns.keys():
        milliseconds = pc.divide(columns[name].cast(pa.int64()), 1e3)
        columns |= {name: milliseconds, f"{name}_text": columns[name].cast(pa.string())}
    return list(pa.table(columns).to_pylist())

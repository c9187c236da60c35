"""Timelines: event time above, processing time below, and each message a line from one to the other.

Windows are boxes on the event time line, ticks below the other mark when batches closed. A message in a batch is drawn
at its `received_at`, a rejected one at its processing time. The pictures are Vega-Lite; altair checks and saves them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFound
from windrow.messages import EARLIEST, LATEST, microseconds, times
from windrow.plot.files import require

if TYPE_CHECKING:
    import altair as alt

Spec = dict[str, Any]
LINES = "Each line joins a message's event time (above) to its processing time (below): what leans came late."
BANDS = "Each band joins event time (above) to processing time (below), and bars count: what leans came late."
BOXES = "Boxes are windows, dashed while open; a tick below marks when the batch of that colour closed."
ACCEPTED, OTHER = "accepted", "#7a0019"
COLOURS = {ACCEPTED: "#5b6b82", "too_old": "#e02b20", "duplicate": "#ff8552", "too_futuristic": "#c2185b"}
FILL = {"condition": {"test": "datum.odd", "value": "#f1dc9b"}, "value": "#a9cbea"}
STROKE = {"condition": {"test": "datum.odd", "value": "#a8780a"}, "value": "#2f6ea5"}
FACE = "time(datum.value) % 864e5 ? time(datum.value) % 1e3 ? '%H:%M:%S.%L' : '%H:%M:%S' : '%d %b'"
LANES, WINDOW = ("event_time", "processing_time"), ("window_start", "window_end", "timeout", "closed_at")
MOMENTS = {*LANES, *WINDOW}
BATCH = ("id", "state", *WINDOW, "close_reason", "opened_by", "message_count", "bytes")
MESSAGE, COUNT = ("type", "outcome", *LANES, "delay_seconds", "id"), ("outcome", "messages")
STREAM, BY_STREAM = ["source", "key"], [("source", "ascending"), ("key", "ascending")]
# Where things stand in a row, from its foot to the next row's.
HEIGHTS = {"box_top": 0.93, "above": 0.8, "box_bottom": 0.67, "name": 0.46, "below": 0.23, "bars": 0.13, "tick": 0.04}
STEPS = [factor * 10**power for power in range(18) for factor in (1, 2, 5)]
BINS, FEW, MOST_LINES = 300, 200, 3_000
STALL_BUCKET, STALL_LONGEST, STALL_MARGIN = 10_000_000, 60_000_000, 5_000_000  # microseconds


def timeline(
    batches: pa.Table,
    rejected: pa.Table,
    *,
    title: str = "From event time to processing time",
    begin: int | None = None,
    end: int | None = None,
    max_streams: int = 6,
    max_lines: int = MOST_LINES,
) -> alt.LayerChart:
    """Return the picture of batches and rejected messages from `begin` to `end` (microseconds; default: all).

    The `max_streams` streams with the most messages have a row each; above `max_lines` messages bands and bars stand
    for lines, above as many batches there are no boxes. Raises MissingExtra, or NotFound when there is no message.
    """
    require("altair")
    import altair as alt

    boxes, messages = _boxes(batches), _messages(batches, rejected)
    shown = (boxes["window_start"], boxes["timeout"], messages["processing_time"])
    moments = np.concatenate([microseconds(column) for column in shown])
    begin = int(moments.min(initial=LATEST)) if begin is None else begin
    end = int(moments.max(initial=EARLIEST)) + 1 if end is None else end
    messages = _between(messages, *LANES, begin, end)
    if not messages.num_rows:
        raise NotFound("there is no message to draw", "Choose another stream, an earlier begin or a later end.")
    streams = messages.group_by(STREAM).aggregate([([], "count_all")])
    rows = _rows(streams.sort_by([("count_all", "descending"), *BY_STREAM]).slice(0, max_streams))
    boxes = _between(boxes, "window_start", "timeout", begin, end).join(rows, STREAM, join_type="inner").sort_by("part")
    messages = messages.join(rows, STREAM, join_type="inner").sort_by("rejected")  # the last are drawn on top
    dense, boxed = messages.num_rows > max_lines, boxes.num_rows <= max_lines
    unplaced = rejected.filter(pc.is_null(rejected["processing_time"]))
    left_out = {
        "rejected before they were processed": _between(unplaced, "received_at", "received_at", begin, end).num_rows,
        "streams with fewer messages": streams.num_rows - rows.num_rows,
        "windows, which are too many": 0 if boxed else boxes.num_rows,
    }
    subtitle = [BANDS if dense else LINES, BOXES, _facts(boxes, messages, left_out)]
    spec = _spec(rows.num_rows, begin, end, title, subtitle)
    marks = _band_marks(messages) if dense else _line_marks(messages)
    spec["layer"] += [_windows(few=boxes.num_rows <= FEW, dense=dense), marks]
    chart = alt.LayerChart.from_dict(spec, validate=False)  # saving does
    data = {"streams": rows, "batches": boxes if boxed else boxes.slice(0, 0)}
    data |= {"bands": _bands(messages, end - begin, max_lines)} if dense else {"messages": messages}
    chart.datasets = {name: _values(table) for name, table in data.items()}  # afterwards, so that none is copied
    return chart


def busiest_rejections(rejected: pa.Table) -> tuple[str, str, int, int]:
    """Return source, key, begin and end of the stretch around most rejections of one stream; raises NotFound."""
    processed = rejected.filter(pc.is_valid(rejected["processing_time"]))
    if not processed.num_rows:
        raise NotFound("no rejected message has a processing time", "There is no such stretch: draw all there is.")
    columns = {name: processed[name] for name in STREAM} | {name: processed[name].cast(pa.int64()) for name in LANES}
    columns["bucket"] = pc.divide(columns["processing_time"], STALL_BUCKET)
    groups = pa.table(columns).group_by([*STREAM, "bucket"])
    counted = groups.aggregate([([], "count_all"), ("event_time", "min"), ("processing_time", "max")])
    order = [("count_all", "descending"), ("bucket", "ascending"), *BY_STREAM]
    busiest = counted.sort_by(order).slice(0, 1).to_pylist()[0]
    last = busiest["processing_time_max"]
    first = max(min(busiest["event_time_min"], last), last - STALL_LONGEST)
    margin = max(STALL_MARGIN, (last - first) // 2)
    return busiest["source"], busiest["key"], first - margin, last + margin


def _boxes(batches: pa.Table) -> pa.Table:
    """Return the batches without their messages, `odd` every other one of a stream."""
    order = [*BY_STREAM, ("window_start", "ascending"), ("part", "ascending")]
    table = batches.select([*STREAM, "part", *BATCH]).sort_by(order)
    return table.append_column("odd", pa.array(np.arange(table.num_rows) % 2 == 1))


def _messages(batches: pa.Table, rejected: pa.Table) -> pa.Table:
    """Return the messages in batches and the rejected ones that have both times; the others have no place."""
    lists = batches["messages"].combine_chunks()
    accepted = batches.select([*STREAM, "id"]).take(pc.list_parent_indices(lists))
    for name, field in (("type", "type"), ("event_time", "event_time"), ("processing_time", "received_at")):
        accepted = accepted.append_column(name, pc.struct_field(pc.list_flatten(lists), field))
    refused = rejected.select([*accepted.column_names, "reason"])
    table = pa.concat_tables([accepted, refused], promote_options="permissive")
    table = table.filter(pc.and_(pc.is_valid(table["event_time"]), pc.is_valid(table["processing_time"])))
    delay = pc.divide(pc.subtract(table["processing_time"], table["event_time"]).cast(pa.int64()), 1e6)
    outcome = pc.fill_null(table["reason"], ACCEPTED)
    columns = {"outcome": outcome, "rejected": pc.is_valid(table["reason"]), "delay_seconds": delay}
    return pa.table({name: table[name] for name in accepted.column_names} | columns)


def _rows(streams: pa.Table) -> pa.Table:
    """Give each stream a row, from the top by name, and say at which height it stands."""
    table = streams.select(STREAM).sort_by(BY_STREAM)
    alone = pc.or_(pc.equal(table["source"], table["key"]), pc.equal(table["source"], ""))
    name = pc.if_else(alone, table["key"], pc.binary_join_element_wise(table["source"], table["key"], " / "))
    return table.append_column("stream", name).append_column("foot", pa.array(np.arange(table.num_rows)[::-1]))


def _bands(messages: pa.Table, span: int, max_lines: int) -> pa.Table:
    """Return how many messages share their way, as finely as `max_lines` allows."""
    way = ["stream", "foot", "rejected", "outcome", *LANES]
    for step in (step for step in STEPS if step >= span / BINS):
        begins = {name: times(microseconds(messages[name]) // step * step) for name in LANES}
        places = pa.table({name: messages[name] for name in way} | begins).group_by(way)
        bands = places.aggregate([([], "count_all")]).rename_columns([*way, "messages"])
        if bands.num_rows <= max_lines or step >= span / 20:
            break
    return bands.append_column("step", pa.array(np.full(bands.num_rows, step / 1e3))).sort_by("rejected")


def _spec(rows: int, begin: int, end: int, title: str, subtitle: list[str]) -> Spec:
    """Return the picture with the two time lines of each stream, and the scales that all marks share."""
    days = " to ".join(sorted({day[:10] for day in times(np.array([begin, end])).cast(pa.string()).to_pylist()}))
    time = {"datum": begin / 1e3, "type": "temporal", "scale": {"type": "utc", "domain": [begin / 1e3, end / 1e3]}}
    height = {"type": "quantitative", "axis": None, "scale": {"domain": [0, rows]}}
    look: Spec = {"align": "right", "clip": False, "limit": 220, "x": -10}
    marks = [_mark("text", {"y": height | {"field": "name"}, "text": {"field": "stream"}}, fontWeight="bold", **look)]
    for place, orient, word in (("above", "top", "Event time"), ("below", "bottom", "Processing time")):
        axis: Spec = {"orient": orient, "labelExpr": f"utcFormat(datum.value, {FACE})", "gridColor": "#edf0f4"}
        axis |= {"title": f"{word} (UTC, {days})", "tickCount": 10, "grid": orient == "top"}
        y = height | {"field": place}
        line = {"x": time | {"axis": axis}, "x2": {"datum": end / 1e3}, "y": y}
        label = {"y": y, "text": {"value": word.lower()}}
        marks += [_mark("rule", line, color="#2d3748"), _mark("text", label, **look)]
    zoom = {"name": "zoom", "bind": "scales", "select": {"type": "interval", "encodings": ["x"]}, "views": ["ways"]}
    return {
        "title": {"text": title, "subtitle": subtitle, "anchor": "start", "frame": "group", "fontSize": 18},
        "width": 1_100,
        "height": 300 if rows == 1 else 190 * rows,
        "params": [zoom],
        "layer": [_group("streams", marks) | {"resolve": {"axis": {"x": "independent"}}}],
        "resolve": {"axis": {"x": "independent"}},
        "config": {"view": {"stroke": None}},
    }


def _windows(*, few: bool, dense: bool) -> Spec:
    """Draw the window of each batch, with parts in front of each other, and a tick where it closed."""
    box = _span("window_start", "low", "window_end", "box_top") | {"fill": FILL, "stroke": STROKE}
    tick = _span("closed_at", "bars" if dense else "below", None, "tick" if dense else "bars") | {"color": STROKE}
    marks = [
        _mark("rect", box, "datum.state != 'open'", fillOpacity=0.85, strokeWidth=int(few)),
        _mark("rect", box, "datum.state == 'open'", fillOpacity=0.15, strokeDash=[5, 3], strokeWidth=1.5),
        _mark("rule", tick, "isValid(datum.closed_at)", strokeWidth=1 + few),
    ]
    return _group("batches", marks, {"low": "datum.box_bottom + 0.04 * min(datum.part, 5)"}, tooltip=_tips(*BATCH))


def _line_marks(messages: pa.Table) -> Spec:
    """Draw each message as a point on both lines, and the line between them."""
    faint = float(np.clip(8 / np.sqrt(messages.num_rows), 0.15, 0.7))
    opacity = {"condition": {"test": "datum.rejected", "value": 0.9}, "value": faint}
    point: Spec = {"size": 45 if messages.num_rows <= FEW else 18, "fillOpacity": 0.9}
    marks = [
        _mark("rule", _span(LANES[0], "above", LANES[1], "below") | {"strokeOpacity": opacity}) | {"name": "ways"},
        _mark("circle", _span(LANES[0], "above"), **point),
        _mark("circle", _span(LANES[1], "below"), **point),
    ]
    return _group("messages", marks, color=_colour(messages), tooltip=_tips(*MESSAGE))


def _band_marks(messages: pa.Table) -> Spec:
    """Draw messages that share their way as one band, and bars that count them on both lines."""
    middles = {f"{name}_middle": f"datum.{name} + datum.step / 2" for name in LANES}
    size = {"field": "messages", "type": "quantitative", "scale": {"type": "sqrt", "range": [0.4, 4]}, "legend": None}
    way = _span("event_time_middle", "box_bottom", "processing_time_middle", "below") | {"size": size}
    marks = [_mark("rule", way | {"tooltip": _tips(*COUNT, *LANES)}, strokeOpacity=0.45) | {"name": "ways"}]
    for lane, bottom, top in ((LANES[0], "box_bottom", "above"), (LANES[1], "below", "bars")):
        place = ["stream", bottom, top, lane, f"{lane}_text", "step"]
        level = f"datum.{bottom} + 0.8 * (datum.{top} - datum.{bottom}) / datum.tallest * datum"
        total = {"op": "sum", "field": "messages", "as": "messages"}
        bar = _mark("rect", _span(lane, "low", "until", "high") | {"tooltip": _tips(*COUNT, lane)})
        bar["transform"] = [
            {"aggregate": [total], "groupby": [*place, "outcome", "rejected"]},
            {"stack": "messages", "as": ["less", "more"], "groupby": place, "sort": [{"field": "rejected"}]},
            {"joinaggregate": [{"op": "max", "field": "more", "as": "tallest"}], "groupby": ["stream"]},
            *_calculated({"low": f"{level}.less", "high": f"{level}.more", "until": f"datum.{lane} + datum.step"}),
        ]
        marks.append(bar)
    return _group("bands", marks, middles, color=_colour(messages))


def _group(data: str, marks: list[Spec], more: dict[str, str] | None = None, **encoding: Any) -> Spec:
    places = _calculated({name: f"datum.foot + {height}" for name, height in HEIGHTS.items()} | (more or {}))
    return {"data": {"name": data}, "transform": places, "encoding": encoding, "layer": marks}


def _calculated(expressions: dict[str, str]) -> list[Spec]:
    return [{"calculate": expression, "as": name} for name, expression in expressions.items()]


def _mark(kind: str, encoding: Spec, only: str = "true", **look: Any) -> Spec:
    return {"mark": {"type": kind, "clip": True, **look}, "encoding": encoding, "transform": [{"filter": only}]}


def _span(x: str, y: str, x2: str | None = None, y2: str | None = None) -> Spec:
    """Return the encoding of a place, or of what reaches from one place to another."""
    place: Spec = {"x": {"field": x, "type": "temporal", "axis": None}, "y": {"field": y, "type": "quantitative"}}
    return place | {name: {"field": field} for name, field in (("x2", x2), ("y2", y2)) if field}


def _colour(messages: pa.Table) -> Spec:
    """Colour messages by what became of them; the legend counts them."""
    counted = {count["values"]: count["counts"] for count in messages["outcome"].value_counts().to_pylist()}
    order = [name for name in COLOURS if name in counted] + sorted(counted.keys() - COLOURS.keys())
    labels = {name: f"{'' if name == ACCEPTED else 'rejected: '}{name} ({counted[name]:,})" for name in order}
    legend = {"title": None, "orient": "top", "labelExpr": f"({json.dumps(labels)})[datum.label]", "labelLimit": 0}
    legend |= {"labelFontSize": 12, "symbolType": "circle", "symbolOpacity": 1, "symbolStrokeWidth": 0}
    scale = {"domain": order, "range": [COLOURS.get(name, OTHER) for name in order]}
    return {"field": "outcome", "type": "nominal", "scale": scale, "legend": legend}


def _tips(*names: str) -> list[Spec]:
    fields = {name: f"{name}_text" if name in MOMENTS else name for name in names}
    return [{"field": field, "type": "nominal", "title": name.replace("_", " ")} for name, field in fields.items()]


def _values(table: pa.Table) -> list[Spec]:
    """Return the rows for Vega, which counts milliseconds; times also as text, to the microsecond."""
    columns = {name: table[name] for name in table.column_names}
    for name in MOMENTS & columns.keys():
        milliseconds = pc.divide(columns[name].cast(pa.int64()), 1e3)
        columns |= {name: milliseconds, f"{name}_text": columns[name].cast(pa.string())}
    return list(pa.table(columns).to_pylist())


def _between(table: pa.Table, first: str, last: str, begin: int, end: int) -> pa.Table:
    """Return the rows whose way from `first` to `last`, or back, touches [begin, end); of NULL nobody knows."""
    ends = [table[name].cast(pa.int64()) for name in (first, last)]
    touches = pc.and_(pc.less(pc.min_element_wise(*ends), end), pc.greater_equal(pc.max_element_wise(*ends), begin))
    return table.filter(pc.fill_null(touches, True))


def _facts(boxes: pa.Table, messages: pa.Table, left_out: dict[str, int]) -> str:
    """Say what the picture holds, and what it leaves out."""
    rejected = pc.sum(messages["rejected"]).as_py()
    still_open = pc.sum(pc.equal(boxes["state"], "open")).as_py() or 0
    drawn = f"{messages.num_rows - rejected:,} messages in {boxes.num_rows:,} batches ({still_open:,} open)"
    missing = "".join(f" Not drawn: {count:,} {what}." for what, count in left_out.items() if count)
    return f"{drawn}, {rejected:,} rejected.{missing}"

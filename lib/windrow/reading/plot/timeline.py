"""Draw timelines: event time above, processing time below, and each message as a line from one to the other.

Windows are boxes on the event time line; boxes below the other line extend to the timeouts, where batches close. A
message in a batch is drawn at its `received_at`, a rejected one at its processing time. This module prepares the data,
and `marks` draws it.
"""

from __future__ import annotations

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFoundError
from windrow.model.messages import EARLIEST, LATEST, microseconds, times
from windrow.reading.plot import marks
from windrow.reading.plot.bins import STEPS
from windrow.reading.plot.marks import BATCH, LANES
from windrow.reading.plot.theme import WIDTH, finish_picture

LINES = "Each line joins a message's event time (above) to its processing time (below): a slanted line came late."
BANDS = "Each band joins event time (above) to processing time (below); the thicker, the more messages."
BOXES = (
    "Boxes are windows, with the number of their messages; dashed: still open. "
    "Below, each extends, lighter, to its timeout; a mark shows where the batch closed."
)
TOO_MANY = "There are too many windows to draw them; a shorter time range shows each."
STREAM, BY_STREAM = ["source", "key"], [("source", "ascending"), ("key", "ascending")]
BINS, MAX_LINES, MAX_LEVELS = 300, 3_000, 6


def timeline(
    batches: pa.Table,
    rejected: pa.Table,
    *,
    title: str = "From event time to processing time",
    start: int | None = None,
    end: int | None = None,
    max_streams: int = 6,
    max_lines: int = MAX_LINES,
) -> alt.LayerChart:
    """Return the picture of batches and rejected messages from `start` to `end` (microseconds; default: all).

    The `max_streams` streams with the most messages have a row each. Above `max_lines` messages, bands and bars replace
    lines; above `max_lines` batches, no boxes are drawn. Raises NotFoundError when there is no message.
    """
    boxes, messages = _boxes(batches), _messages(batches, rejected)
    shown = (boxes["window_start"], boxes["timeout_at"], messages["processing_time"])
    moments = np.concatenate([microseconds(column) for column in shown])
    start = int(moments.min(initial=LATEST)) if start is None else start
    end = int(moments.max(initial=EARLIEST)) + 1 if end is None else end
    messages = _filter_between(messages, *LANES, start, end)
    if not messages.num_rows:
        raise NotFoundError("there is no message to draw", "Choose another stream, an earlier start or a later end.")
    streams = messages.group_by(STREAM).aggregate([([], "count_all")])
    rows = _rows(streams.sort_by([("count_all", "descending"), *BY_STREAM]).slice(0, max_streams))
    boxes = _filter_between(boxes, "window_start", "timeout_at", start, end)
    boxes = boxes.join(rows, STREAM, join_type="inner").sort_by("part")
    messages = messages.join(rows, STREAM, join_type="inner").sort_by("rejected")  # rejected ones last, so drawn on top
    dense, boxed = messages.num_rows > max_lines, boxes.num_rows <= max_lines
    unplaced = rejected.filter(pc.is_null(rejected["processing_time"]))
    left_out = {
        "rejected before they were processed": _filter_between(
            unplaced, "received_at", "received_at", start, end
        ).num_rows,
        "streams with fewer messages": streams.num_rows - rows.num_rows,
    }
    data = {"streams": rows} | ({"batches": _assign_levels(boxes)} if boxed else {})
    data |= {"bands": _bands(messages, end - start, max_lines)} if dense else {"messages": messages}
    layers: list[alt.Chart | alt.LayerChart] = [marks.frame(rows.num_rows, start, end, boxed=boxed)]
    layers += marks.windows(boxes.num_rows, end - start) if boxed else []
    layers += marks.draw_bands(messages) if dense else marks.lines(messages)
    height = marks.ONLY_ROW_HEIGHT if rows.num_rows == 1 else marks.ROW_HEIGHT * rows.num_rows
    picture = alt.LayerChart(layer=layers, width=WIDTH, height=height).resolve_axis(x="independent")
    how = [BANDS if dense else LINES, BOXES if boxed else TOO_MANY, _facts(boxes, messages, left_out)]
    return finish_picture(picture, title, how, {name: marks.values(table) for name, table in data.items()})


def _boxes(batches: pa.Table) -> pa.Table:
    """Return the batches without their messages; `odd` is true for every other one."""
    order = [*BY_STREAM, ("window_start", "ascending"), ("part", "ascending")]
    table = batches.select([*STREAM, "part", *BATCH]).sort_by(order)
    return table.append_column("odd", pa.array(np.arange(table.num_rows) % 2 == 1))


def _assign_levels(boxes: pa.Table) -> pa.Table:
    """Put each batch on a level below those of its stream that are still open when its window begins."""
    ordered = boxes.sort_by([("foot", "ascending"), ("window_start", "ascending"), ("part", "ascending")])
    foot, begins, ends = (microseconds(ordered[name]) for name in ("foot", "window_start", "timeout_at"))
    streams, first, stream = np.unique(foot, return_index=True, return_inverse=True)
    place = np.arange(len(foot)) - first[stream]
    levels = np.ones(len(streams), np.int64)
    for number in range(len(streams)):
        mine = stream == number
        still_open = place[mine] - np.searchsorted(np.sort(ends[mine]), begins[mine], "right") + 1
        levels[number] = np.clip(still_open.max(), 1, MAX_LEVELS)
    level = {"level": place % levels[stream], "levels": levels[stream]}
    return pa.table({name: ordered[name] for name in ordered.column_names} | level).sort_by("part")


def _messages(batches: pa.Table, rejected: pa.Table) -> pa.Table:
    """Return the messages in batches and the rejected ones with both times; the rest cannot be drawn."""
    lists = batches["messages"].combine_chunks()
    accepted = batches.select([*STREAM, "id"]).take(pc.list_parent_indices(lists))
    for name, field in (("type", "type"), ("event_time", "event_time"), ("processing_time", "received_at")):
        accepted = accepted.append_column(name, pc.struct_field(pc.list_flatten(lists), field))
    refused = rejected.select([*accepted.column_names, "reason"])
    table = pa.concat_tables([accepted, refused], promote_options="permissive")
    table = table.filter(pc.and_(pc.is_valid(table["event_time"]), pc.is_valid(table["processing_time"])))
    delay = pc.divide(pc.subtract(table["processing_time"], table["event_time"]).cast(pa.int64()), 1e6)
    outcome = pc.fill_null(table["reason"], "accepted")
    columns = {"outcome": outcome, "rejected": pc.is_valid(table["reason"]), "delay_seconds": delay}
    return pa.table({name: table[name] for name in accepted.column_names} | columns)


def _rows(streams: pa.Table) -> pa.Table:
    """Give each stream a row, sorted by name from the top; `foot` is its height."""
    table = streams.select(STREAM).sort_by(BY_STREAM)
    alone = pc.or_(pc.equal(table["source"], table["key"]), pc.equal(table["source"], ""))
    name = pc.if_else(alone, table["key"], pc.binary_join_element_wise(table["source"], table["key"], " / "))
    return table.append_column("stream", name).append_column("foot", pa.array(np.arange(table.num_rows)[::-1]))


def _bands(messages: pa.Table, span: int, max_lines: int) -> pa.Table:
    """Return how many messages share rounded times, as finely as `max_lines` allows."""
    way = ["stream", "foot", "rejected", "outcome", *LANES]
    for step in (step for step in STEPS if step >= span / BINS):
        begins = {name: times(microseconds(messages[name]) // step * step) for name in LANES}
        places = pa.table({name: messages[name] for name in way} | begins).group_by(way)
        bands = places.aggregate([([], "count_all")]).rename_columns([*way, "messages"])
        if bands.num_rows <= max_lines or step >= span / 20:
            break
    return bands.append_column("step", pa.array(np.full(bands.num_rows, step / 1e3))).sort_by("rejected")


def _filter_between(table: pa.Table, first: str, last: str, start: int, end: int) -> pa.Table:
    """Return the rows whose time from `first` to `last` overlaps [start, end), in either direction, or is NULL."""
    ends = [table[name].cast(pa.int64()) for name in (first, last)]
    touches = pc.and_(pc.less(pc.min_element_wise(*ends), end), pc.greater_equal(pc.max_element_wise(*ends), start))
    return table.filter(pc.fill_null(touches, True))


def _facts(boxes: pa.Table, messages: pa.Table, left_out: dict[str, int]) -> str:
    rejected = pc.sum(messages["rejected"]).as_py()
    still_open = pc.sum(pc.equal(boxes["state"], "open")).as_py() or 0
    drawn = f"{messages.num_rows - rejected:,} messages in {boxes.num_rows:,} batches ({still_open:,} open)"
    missing = "".join(f" Not drawn: {count:,} {what}." for what, count in left_out.items() if count)
    return f"{drawn}, {rejected:,} rejected.{missing}"

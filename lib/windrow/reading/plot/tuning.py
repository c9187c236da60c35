"""Draw a sweep: what each pair of window and max_delay makes of the same messages, one column per max_delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import pyarrow as pa

from windrow.errors import NotFoundError
from windrow.model.durations import format_duration
from windrow.reading.plot.bins import time_text
from windrow.reading.plot.theme import LIMIT, WIDTH, chart, finish_picture, panel, tooltips

if TYPE_CHECKING:
    from windrow.batching.rules import Rules

TITLE = "Which window, which max_delay?"
SHORT = "* the window is not longer than max_delay + max_lead: messages far from the clock start separate windows"
PANELS = {  # the title, and the colours of the least and the greatest value
    "rejected_percent": ("Rejected, of all messages: the window does not matter", ["#fff8f6", "#f08a80"]),
    "batch_messages_mean": ("Messages in a batch, on average", ["#f3f8fd", "#8fb8dd"]),
    "wait_seconds_median": (
        "How long messages wait until their batch closes: the median, in brackets 95 %", ["#fdf9ee", "#e0b95c"],
    ),
}  # fmt: skip
FIGURES = (
    "window", "max_delay", "rejected", "too_old", "too_far_ahead", "duplicate", "batch_count", "open_batch_count",
    "batch_messages_mean", "wait_seconds_median", "wait_seconds_p95",
)  # fmt: skip
CELL = 36  # pixels


def tuning(tuned: pa.Table, rules: Rules | None = None, *, of: str | None = None) -> alt.VConcatChart:
    """Return the picture of a sweep (the table of `windrow.tune`); the pair of `rules` is framed, if it is there.

    `of` names whose messages were tried, such as a key, for the title. Raises NotFoundError for an empty table.
    """
    if not tuned.num_rows:
        raise NotFoundError("there is no pair of rules to draw", "Give windows and delays to try.")
    pairs = [_describe_pair(row, rules) for row in tuned.to_pylist()]
    windows, delays = (list(dict.fromkeys(pair[name] for pair in pairs)) for name in ("window", "max_delay"))
    cells = chart("pairs").encode(
        x=alt.X("max_delay:O", sort=delays, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("window:O", sort=windows[::-1]),
    )
    panels = [_panel(name, cells, CELL * len(windows)) for name in PANELS]
    subtitle = [
        f"{pairs[0]['message_count']:,} messages were tried under each pair of rules; a frame marks those in force."
    ]
    subtitle += [SHORT] if any(pair["warning"] for pair in pairs) else []
    title = f"{of}: {TITLE}" if of else TITLE
    return finish_picture(alt.vconcat(*panels, spacing=26), title, subtitle, {"pairs": pairs})


def _describe_pair(row: dict[str, Any], rules: Rules | None) -> dict[str, Any]:
    short = " *" if row["warning"] else ""
    wait, p95, mean = (row[name] for name in ("wait_seconds_median", "wait_seconds_p95", "batch_messages_mean"))
    waits = "none closed" if wait is None else f"{time_text(wait * 1e3)} ({time_text(p95 * 1e3)}){short}"
    return row | {
        "window": format_duration(row["window_us"]),
        "max_delay": format_duration(row["max_delay_us"]),
        "chosen": rules is not None and (row["window_us"], row["max_delay_us"]) == (rules.window, rules.max_delay),
        "rejected_percent_text": f"{row['rejected_percent']:.2f} % ({row['rejected']:,})",
        "batch_messages_mean_text": "none" if mean is None else f"{mean:,.1f}{short}",
        "wait_seconds_median_text": waits,
    }


def _panel(name: str, cells: alt.Chart, height: int) -> alt.LayerChart:
    title, colours = PANELS[name]
    fill = alt.Fill(f"{name}:Q", scale=alt.Scale(type="sqrt", range=colours), legend=None)
    drawn = panel(
        title,
        height,
        cells.mark_rect(stroke="#ffffff").encode(fill=fill, tooltip=tooltips(*FIGURES)),
        cells.mark_text().encode(text=f"{name}_text:N"),
        cells.mark_rect(filled=False, stroke=LIMIT, strokeWidth=3).transform_filter("datum.chosen"),
        width=WIDTH - 100,
    )
    return drawn.resolve_scale(fill="independent")

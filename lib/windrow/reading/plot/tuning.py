"""Draw a sweep: what each pair of window and max_delay makes of the same messages.

A column is one max_delay, a row one window. The top panel shows the share rejected, which does not depend on the
window; below are the messages in a batch and how long a message waits. The rules in force are framed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import pyarrow as pa

from windrow.errors import NotFound
from windrow.model.durations import text
from windrow.reading.plot.bins import time_text
from windrow.reading.plot.theme import INK, LIMIT, REJECTED, WIDTH, Rows, chart, finished, panel, tips

if TYPE_CHECKING:
    from windrow.batching.rules import Rules

TITLE = "Which window, which max_delay?"
HOW = "Each cell is one pair of rules, tried on the same messages; a column is one max_delay."
FRAME = " The frame marks the rules in force."
SHORT = "* the window is not longer than max_delay + max_leap: messages far from the clock start separate windows"
PANELS = {  # the title, and the colours of the least and the greatest value
    "rejected_percent": ("Rejected, of all messages: the window does not matter", ["#fff8f6", REJECTED]),
    "batch_messages_mean": ("Messages in a batch, on average", ["#f3f8fd", "#2f6ea5"]),
    "wait_seconds_median": (
        "How long messages wait until their batch closes: the median, in brackets 95 %", ["#fdf9ee", "#a8780a"],
    ),
}  # fmt: skip
FIGURES = (
    "window", "max_delay", "rejected", "too_old", "too_futuristic", "duplicate", "batches", "open_batches",
    "batch_messages_mean", "batch_messages_largest", "wait_seconds_median", "wait_seconds_p95", "wait_seconds_longest",
)  # fmt: skip
CELL, DARK = 36, 0.72  # pixels; the shade from which on text is white


def tuning(tuned: pa.Table, rules: Rules | None = None, *, of: str | None = None) -> alt.VConcatChart:
    """Return the picture of a sweep (the table of `windrow.tune`); the pair of `rules` is framed, if it is there.

    `of` says whose messages were tried, such as a key, for the title. Raises NotFound when the table has no row.
    """
    if not tuned.num_rows:
        raise NotFound("there is no pair of rules to draw", "Give windows and delays to try.")
    pairs = [_described(row, rules) for row in tuned.to_pylist()]
    windows, delays = (list(dict.fromkeys(pair[name] for pair in pairs)) for name in ("window", "max_delay"))
    _shade(pairs)
    alone = list({pair["max_delay"]: pair for pair in reversed(pairs)}.values())[::-1]
    alone = [pair | {"chosen": pair["max_delay_us"] == (rules and rules.max_delay)} for pair in alone]
    first, *others = PANELS
    panels = [_panel(first, "delays", delays)]
    panels += [_panel(name, "pairs", delays, windows, labelled=name == others[-1]) for name in others]
    subtitle = [HOW + FRAME * any(pair["chosen"] for pair in pairs)]
    subtitle += [SHORT] if any(pair["warning"] for pair in pairs) else []
    subtitle.append(f"{pairs[0]['messages']:,} messages were tried.")
    title = f"{of}: {TITLE}" if of else TITLE
    return finished(alt.vconcat(*panels, spacing=26), title, subtitle, {"pairs": pairs, "delays": alone})


def _described(row: dict[str, Any], rules: Rules | None) -> dict[str, Any]:
    short = " *" if row["warning"] else ""
    wait, p95 = (row[f"wait_seconds_{name}"] for name in ("median", "p95"))
    mean = row["batch_messages_mean"]
    return row | {
        "window": text(row["window_us"]),
        "max_delay": text(row["max_delay_us"]),
        "chosen": rules is not None and (row["window_us"], row["max_delay_us"]) == (rules.window, rules.max_delay),
        "rejected_percent_text": f"{row['rejected_percent']:.2f} % ({row['rejected']:,})",
        "batch_messages_mean_text": "none" if mean is None else f"{mean:,.1f}{short}",
        "wait_seconds_median_text": (
            "none closed" if wait is None else f"{time_text(wait * 1e3)} ({time_text(p95 * 1e3)}){short}"
        ),
    }


def _shade(pairs: Rows) -> None:
    """Add the shade of each cell, from 0 for the least value of its panel to 1 for the greatest."""
    for name in PANELS:
        values = [pair[name] for pair in pairs if pair[name] is not None]
        least = 0 if name == "rejected_percent" else min(values, default=0)
        span = max(values, default=0) - least
        for pair in pairs:
            value = pair[name]
            pair[f"{name}_shade"] = 0 if value is None or not span else ((value - least) / span) ** 0.5


def _panel(
    name: str, data: str, delays: list[str], windows: list[str] | None = None, *, labelled: bool = False
) -> alt.LayerChart:
    """Return a panel of labelled cells over max_delay; without windows it has one row."""
    title, colours = PANELS[name]
    axis: dict[str, Any] = {"title": "max_delay", "labelAngle": 0} if labelled or windows is None else {"title": None}
    axis |= {"orient": "bottom" if labelled else "top", "labels": axis["title"] is not None}
    cells = chart(data).encode(x=alt.X("max_delay:O", sort=delays, axis=alt.Axis(domain=False, ticks=False, **axis)))
    if windows is not None:
        down = alt.Axis(title="window", domain=False, ticks=False)
        cells = cells.encode(y=alt.Y("window:O", sort=windows[::-1], axis=down))
    fill = alt.Fill(f"{name}_shade:Q", scale=alt.Scale(domain=[0, 1], range=colours), legend=None)
    ink = alt.condition(f"datum.{name}_shade > {DARK}", alt.value("#ffffff"), alt.value(INK))
    drawn = panel(
        title,
        CELL * len(windows or [""]),
        cells.mark_rect(stroke="#ffffff").encode(fill=fill, tooltip=tips(*FIGURES)),
        cells.mark_text().encode(text=f"{name}_text:N", color=ink),
        cells.mark_rect(filled=False, stroke=LIMIT, strokeWidth=3).transform_filter("datum.chosen"),
        width=WIDTH - 100,
    )
    return drawn.resolve_scale(color="independent", fill="independent")

"""Draw a sweep: what each pair of window and max_delay makes of the same messages.

A column is one max_delay, a row one window. The top panel shows the share rejected, which does not depend on the
window; below are the messages in a batch and how long a message waits. The rules in force are framed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.errors import NotFound
from windrow.model.durations import text
from windrow.reading.plot.theme import INK, LIMIT, REJECTED, WIDTH, Spec, drawn, mark, panel, tips, titled

if TYPE_CHECKING:
    import altair as alt

    from windrow.batching.rules import Rules

TITLE = "Which window, which max_delay?"
HOW = "Each cell is one pair of rules, tried on the same messages; a column is one max_delay."
FRAME = " The frame marks the rules in force."
SHORT = "* the window is not longer than max_delay + max_leap: messages far from the clock start separate windows"
REDS, BLUES, SANDS = ["#fff8f6", REJECTED], ["#f3f8fd", "#2f6ea5"], ["#fdf9ee", "#a8780a"]
PANELS = {
    "rejected_percent": ("Rejected, of all messages: the window does not matter", REDS),
    "batch_messages_mean": ("Messages in a batch, on average", BLUES),
    "wait_seconds_median": (
        "How long messages wait until their batch closes: the median, in brackets 95 %",
        SANDS,
    ),
}
FIGURES = (
    "window", "max_delay", "rejected", "too_old", "too_futuristic", "duplicate", "batches", "open_batches",
    "batch_messages_mean", "batch_messages_largest", "wait_seconds_median", "wait_seconds_p95", "wait_seconds_longest",
)  # fmt: skip
CELL, DARK, LONG = 36, 0.72, 120


def tuning(tuned: pa.Table, rules: Rules | None = None, *, of: str | None = None) -> alt.VConcatChart:
    """Return the picture of a sweep (the table of `windrow.tune`); the pair of `rules` is framed, if it is there.

    `of` says whose messages were tried, such as a key, for the title.
    Raises MissingExtra, or NotFound when the table has no row.
    """
    if not tuned.num_rows:
        raise NotFound("there is no pair of rules to draw", "Give windows and delays to try.")
    pairs = [_described(row, rules) for row in tuned.to_pylist()]
    windows, delays = (list(dict.fromkeys(pair[name] for pair in pairs)) for name in ("window", "max_delay"))
    _shade(pairs)
    framed = any(pair["chosen"] for pair in pairs)
    subtitle = [HOW + FRAME * framed, *([SHORT] if any(pair["warning"] for pair in pairs) else [])]
    alone = list({pair["max_delay"]: pair for pair in reversed(pairs)}.values())[::-1]
    alone = [pair | {"chosen": pair["max_delay_us"] == (rules and rules.max_delay)} for pair in alone]
    names = list(PANELS)
    spec = {
        "title": titled(f"{of}: {TITLE}" if of else TITLE, *subtitle, f"{pairs[0]['messages']:,} messages were tried."),
        "vconcat": [
            _panel(names[0], "delays", delays, None),
            *(_panel(name, "pairs", delays, windows, labelled=name == names[-1]) for name in names[1:]),
        ],
        "spacing": 26,
    }
    return drawn(spec, {"pairs": pairs, "delays": alone})


def _described(row: Spec, rules: Rules | None) -> Spec:
    """Return a row with the texts of its cells."""
    short = " *" if row["warning"] else ""
    wait, most = (_span(row[f"wait_seconds_{name}"]) for name in ("median", "p95"))
    mean = row["batch_messages_mean"]
    now = rules is not None and (row["window_us"], row["max_delay_us"]) == (rules.window, rules.max_delay)
    return row | {
        "window": text(row["window_us"]),
        "max_delay": text(row["max_delay_us"]),
        "chosen": now,
        "rejected_percent_text": f"{row['rejected_percent']:.2f} % ({row['rejected']:,})",
        "batch_messages_mean_text": "none" if mean is None else f"{mean:,.1f}{short}",
        "wait_seconds_median_text": "none closed" if wait == "" else f"{wait} ({most}){short}",
    }


def _shade(pairs: list[Spec]) -> None:
    """Add the shade of each cell, from 0 for the least value of its panel to 1 for the greatest."""
    for name in PANELS:
        values = [pair[name] for pair in pairs if pair[name] is not None]
        least = 0 if name == "rejected_percent" else min(values, default=0)
        span = max(values, default=0) - least
        for pair in pairs:
            value = pair[name]
            pair[f"{name}_shade"] = 0 if value is None or not span else ((value - least) / span) ** 0.5


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < LONG else text(round(seconds) * 1_000_000)


def _panel(name: str, data: str, delays: list[str], windows: list[str] | None, labelled: bool = False) -> Spec:
    """Return a panel of labelled cells over max_delay; without windows it has one row."""
    words, colours = PANELS[name]
    shade = f"{name}_shade"
    axis: Spec = {"title": "max_delay", "orient": "bottom" if labelled else "top", "labelAngle": 0, "domain": False}
    axis |= {"ticks": False} if labelled or windows is None else {"labels": False, "ticks": False, "title": None}
    place: Spec = {"x": {"field": "max_delay", "type": "ordinal", "sort": delays, "axis": axis}}
    if windows is not None:
        down: Spec = {"title": "window", "domain": False, "ticks": False}
        place["y"] = {"field": "window", "type": "ordinal", "sort": windows[::-1], "axis": down}
    scale = {"domain": [0, 1], "range": colours}
    fill = {"field": shade, "type": "quantitative", "scale": scale, "legend": None}
    ink = {"condition": {"test": f"datum.{shade} > {DARK}", "value": "#ffffff"}, "value": INK}
    marks = [
        mark("rect", {"fill": fill, "tooltip": tips(*FIGURES)}, stroke="#ffffff"),
        mark("text", {"text": {"field": f"{name}_text"}, "color": ink}),
        mark("rect", {}, filled=False, stroke=LIMIT, strokeWidth=3) | {"transform": [{"filter": "datum.chosen"}]},
    ]
    return {
        "title": panel(words) | {"anchor": "start"},
        "data": {"name": data},
        "width": WIDTH - 100,
        "height": CELL * (1 if windows is None else len(windows)),
        "encoding": place,
        "layer": marks,
        "resolve": {"scale": {"color": "independent", "fill": "independent"}},
    }

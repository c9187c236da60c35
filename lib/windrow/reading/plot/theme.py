"""What all pictures share: colours by meaning, one width, one font, the config of Vega-Lite, and how they are saved.

The files need no network: .html for zooming, .png, .svg, and .json for other programs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import altair as alt

from windrow.errors import SettingsError
from windrow.model.printable import printable
from windrow.reading.plot.extra import require

Rows = list[dict[str, Any]]
Picture = TypeVar("Picture", alt.VConcatChart, alt.LayerChart)

WIDTH = 1_100
INK, MUTED, FAINT, GRID = "#1f2937", "#5b6470", "#c9d0d9", "#e8ecf1"
ACCEPTED, REJECTED, LIMIT = "#5b6b82", "#e02b20", "#111827"
# The colours of outcomes; all other reasons have the colour OTHER.
OUTCOMES = {"accepted": ACCEPTED, "too_old": REJECTED, "duplicate": "#ff8552", "too_far_ahead": "#c2185b"}
OTHER = "#7a0019"
# Neighbouring windows alternate between these: fill, edge.
WINDOWS = (("#a9cbea", "#2f6ea5"), ("#f1dc9b", "#a8780a"))
CLOSINGS = {"timeout": "#2f6ea5", "flush": "#0f8b6d", "still open": "#a9cbea"}
PHASES = {"prime": "#b8c4d6", "plan": "#7f9cc0", "process": "#2f6ea5", "commit": "#e0a526"}
KINDS = {
    "tick": "#2f6ea5", "flush": "#0f8b6d", "rules": "#a8780a", "pause": "#7a5195", "resume": "#7a5195",
    "skip": "#b5482a", "amend": "#4b7f2a",
}  # fmt: skip

CONFIG: dict[str, Any] = {
    "font": "Arial, Liberation Sans, Helvetica, sans-serif",
    "background": "#ffffff",
    "padding": 14,
    "view": {"stroke": None},
    "title": {
        "anchor": "start", "frame": "group", "color": INK, "fontSize": 19, "offset": 14,
        "subtitleColor": MUTED, "subtitleFontSize": 13, "subtitleLineHeight": 18, "subtitlePadding": 6,
    },
    "axis": {
        "labelColor": INK, "labelFontSize": 12, "titleColor": MUTED, "titleFontSize": 12, "titleFontWeight": "normal",
        "domainColor": MUTED, "tickColor": MUTED, "gridColor": GRID, "labelOverlap": True,
    },
    "legend": {
        "title": None, "orient": "top", "direction": "horizontal", "labelColor": INK, "labelFontSize": 13,
        "labelLimit": 0, "symbolSize": 120, "symbolOpacity": 1, "symbolStrokeWidth": 0, "columnPadding": 18,
    },
    "text": {"color": INK, "fontSize": 12},
}  # fmt: skip


def chart(data: str) -> alt.Chart:
    """Return a chart of the rows with this name, which `finish_picture` adds."""
    return alt.Chart(alt.NamedData(data))


def panel(text: str, height: int, *layers: alt.Chart, width: int = WIDTH) -> alt.LayerChart:
    """Return layers as one panel (sizes in pixels), whose title says what its marks mean."""
    title = alt.TitleParams(printable(text), fontSize=13, fontWeight="bold", offset=8)
    return alt.LayerChart(layer=list(layers), title=title, width=width, height=height)


def tooltips(*fields: str) -> list[alt.Tooltip]:
    """Return the tooltip that shows these fields."""
    titles = {field: field.removesuffix("_text").replace("_", " ") for field in fields}
    return [alt.Tooltip(field, type="nominal", title=title) for field, title in titles.items()]


def outcomes(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each outcome, in the order of legends and stacks, accepted first."""
    there = set(names)
    others = dict.fromkeys(sorted(there - OUTCOMES.keys()), OTHER)
    return {name: colour for name, colour in OUTCOMES.items() if name in there} | others


def colour_encoding(
    field: str, colours: dict[str, str], labels: dict[str, str] | None = None, **legend: Any
) -> alt.Color:
    """Return the encoding that colours a field by a table of colours; `labels` replace the names in the legend."""
    if labels:
        words = {printable(name): printable(label) for name, label in labels.items()}
        legend["labelExpr"] = f"({json.dumps(words)})[datum.label]"
    scale = alt.Scale(domain=[printable(name) for name in colours], range=list(colours.values()))
    return alt.Color(field, type="nominal", scale=scale, legend=alt.Legend(**{"symbolType": "square"} | legend))


def finish_picture(picture: Picture, title: str, subtitle: list[str], data: dict[str, Rows]) -> Picture:
    """Return a picture with its title, the lines below it, its data, and the config of all pictures."""
    lines = [printable(line) for line in subtitle]
    picture = picture.properties(title=alt.TitleParams(printable(title), subtitle=lines), config=CONFIG)
    picture.datasets = {  # assigned last, so that nothing is copied
        name: [
            {key: printable(value) if isinstance(value, str) else value for key, value in row.items()} for row in rows
        ]
        for name, rows in data.items()
    }
    return picture


def save(picture: alt.TopLevelMixin, path: str | Path) -> None:
    """Write a .html (it needs no network), .png, .svg or .json file. Raises what `require_picture` does."""
    require_picture(path)
    file = Path(path)
    try:
        picture.save(str(file), inline=file.suffix == ".html", scale_factor=2, json_kwds={"cls": _Harmless})
    except OSError as error:
        raise SettingsError(f"{str(path)!r} cannot be written: {error.strerror}", "Name another file.") from error


def require_picture(path: str | Path) -> None:
    """Raise SettingsError unless `path` has the ending of a picture, MissingExtraError unless it can be written."""
    if Path(path).suffix not in {".html", ".png", ".svg", ".json"}:
        raise SettingsError(f"{str(path)!r} has no picture extension", "Use .html, .png, .svg or .json.")
    require("vl_convert")


class _Harmless(json.JSONEncoder):  # a name like `</script>` must not end the script that contains it
    def encode(self, o: Any) -> str:
        return super().encode(o).replace("<", "\\u003c")

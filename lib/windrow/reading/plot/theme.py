"""What all pictures share: colours by meaning, one width, one font, the config of Vega-Lite, and how they are saved.

The files need no network: .html for zooming, .png, .svg, and .json for other programs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.errors import MissingExtra, SettingsError
from windrow.model.printable import printable

if TYPE_CHECKING:
    import altair as alt

Spec = dict[str, Any]

WIDTH = 1_100
INK, MUTED, FAINT, GRID = "#1f2937", "#5b6470", "#c9d0d9", "#e8ecf1"
ACCEPTED, REJECTED, LIMIT = "#5b6b82", "#e02b20", "#111827"
# The colours of outcomes; any other reason is OTHER.
OUTCOMES = {"accepted": ACCEPTED, "too_old": REJECTED, "duplicate": "#ff8552", "too_futuristic": "#c2185b"}
OTHER = "#7a0019"
# Neighbouring windows take turns: fill, edge.
WINDOWS = (("#a9cbea", "#2f6ea5"), ("#f1dc9b", "#a8780a"))
CLOSINGS = {"timeout": "#2f6ea5", "flush": "#0f8b6d", "still open": "#a9cbea"}
PHASES = {"prime": "#b8c4d6", "plan": "#7f9cc0", "process": "#2f6ea5", "commit": "#e0a526"}
KINDS = {
    "tick": "#2f6ea5",
    "flush": "#0f8b6d",
    "rules": "#a8780a",
    "pause": "#7a5195",
    "resume": "#7a5195",
    "accept": "#b5482a",
}

FONT = "Arial, Liberation Sans, Helvetica, sans-serif"
CONFIG: Spec = {
    "font": FONT,
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


def titled(text: str, *subtitle: str) -> Spec:
    """Return the title of a picture and the lines below it, which say how to read it and what it holds."""
    return {"text": text, "subtitle": list(subtitle)}


def panel(text: str) -> Spec:
    """Return the title of one panel, which says what its marks mean."""
    return {"text": text, "fontSize": 13, "fontWeight": "bold", "offset": 8}


def mark(kind: str, encoding: Spec, **look: Any) -> Spec:
    """Return a mark of a kind."""
    return {"mark": {"type": kind, **look}, "encoding": encoding}


def tips(*fields: str) -> list[Spec]:
    """Return the tooltip that shows these fields."""
    titles = {field: field.removesuffix("_text").replace("_", " ") for field in fields}
    return [{"field": field, "type": "nominal", "title": title} for field, title in titles.items()]


def outcomes(found: Iterable[str]) -> dict[str, str]:
    """Return the colour of each outcome found, in the order of legends and stacks, accepted first."""
    there = set(found)
    return {name: colour for name, colour in OUTCOMES.items() if name in there} | dict.fromkeys(
        sorted(there - OUTCOMES.keys()), OTHER
    )


def coloured(field: str, colours: dict[str, str], **legend: Any) -> Spec:
    """Return the encoding that colours a field by a table of colours; `legend` adds to the config."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": {"symbolType": "square", **legend}}


def drawn(spec: Spec, data: dict[str, list[Spec]]) -> Any:
    """Return the chart of panels one above the other, or of layers, with its data. Raises MissingExtra.

    altair's `from_dict` would take a second: it validates each part against everything that it might be. Saving
    validates the whole once.
    """
    require("altair")
    import altair as alt

    spec = _shown(spec)
    kind = alt.VConcatChart if "vconcat" in spec else alt.LayerChart
    params = [alt.TopLevelSelectionParameter(**one) for one in spec.get("params", [])]
    chart = kind(**_with_parts(spec) | ({"params": params} if params else {}) | {"config": CONFIG})
    chart.datasets = _shown(data)  # afterwards, so that none is copied
    return chart


def _shown(part: Any) -> Any:
    """Return a part of a specification or of its data with texts that a picture can hold."""
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, dict):
        return {name: _shown(value) for name, value in part.items()}
    return [_shown(one) for one in part] if isinstance(part, list) else part


def _with_parts(spec: Spec) -> Spec:
    """Return a specification with its panels, layers and encoding as objects of altair."""
    import altair as alt

    made = {name: [_part(one) for one in spec[name]] for name in ("vconcat", "hconcat", "layer") if name in spec}
    encoding = {"encoding": alt.FacetedEncoding(**spec["encoding"])} if "encoding" in spec else {}
    return spec | made | encoding


def _part(spec: Spec) -> Any:
    """Return a panel or a layer."""
    import altair as alt

    kinds = {"hconcat": alt.HConcatSpecGenericSpec, "layer": alt.LayerSpec}
    kind = next((kind for name, kind in kinds.items() if name in spec), alt.FacetedUnitSpec)
    return kind(**_with_parts(spec))


def save(chart: alt.TopLevelMixin, path: str | Path) -> None:
    """Write a .html (it needs no network), .png, .svg or .json file. Raises what `require_picture` does."""
    require_picture(path)
    file = Path(path)
    try:
        chart.save(str(file), inline=file.suffix == ".html", scale_factor=2, json_kwds={"cls": _Harmless})
    except OSError as error:
        raise SettingsError(f"{str(path)!r} cannot be written: {error.strerror}", "Name another file.") from error


def require_picture(path: str | Path) -> None:
    """Raise SettingsError unless `path` has the ending of a picture, MissingExtra unless it can be drawn."""
    if Path(path).suffix not in {".html", ".png", ".svg", ".json"}:
        raise SettingsError(f"{str(path)!r} does not end like a picture", "Use .html, .png, .svg or .json.")
    require("altair")
    require("vl_convert")


def require(package: str) -> None:
    """Raise MissingExtra unless a package is installed."""
    if find_spec(package) is None:
        raise MissingExtra(f"pictures need {package}", "pip install 'windrow-delta[plot]'")


class _Harmless(json.JSONEncoder):  # a name like `</script>` must not end the script that contains it
    def encode(self, o: Any) -> str:
        return super().encode(o).replace("<", "\\u003c")

"""Make charts, and save them as files that need no network: .html to zoom, .png, .svg, and .json for other programs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.errors import MissingExtra, SettingsError
from windrow.reading.plot.theme import CONFIG, Spec

if TYPE_CHECKING:
    import altair as alt


def drawn(spec: Spec, data: dict[str, list[Spec]]) -> Any:
    """Return the chart of panels one above the other, or of layers, with its data. Raises MissingExtra."""
    require("altair")
    import altair as alt

    kind = alt.VConcatChart if "vconcat" in spec else alt.LayerChart
    chart = kind.from_dict(spec | {"config": CONFIG}, validate=False)  # saving does
    chart.datasets = data  # afterwards, so that none is copied
    return chart


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

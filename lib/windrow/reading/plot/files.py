"""Pictures as files that need no network: .html to zoom in, .png, .svg, and .json for other programs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.errors import MissingExtra, SettingsError
from windrow.reading.plot.png import smaller

if TYPE_CHECKING:
    import altair as alt


def save(chart: alt.TopLevelMixin, path: str | Path) -> None:
    """Write a .html (it needs no network), .png, .svg or .json file. Raises what `require_picture` does."""
    require_picture(path)
    file = Path(path)
    try:
        chart.save(str(file), inline=file.suffix == ".html", scale_factor=2, json_kwds={"cls": _Harmless})
        if file.suffix == ".png":
            file.write_bytes(smaller(file.read_bytes()))
    except OSError as error:
        raise SettingsError(f"{str(path)!r} cannot be written: {error.strerror}", "Name another file.") from error


def require_picture(path: str | Path) -> None:
    """Raise SettingsError unless `path` names a kind of picture, MissingExtra unless it can be drawn."""
    if Path(path).suffix not in {".html", ".png", ".svg", ".json"}:
        raise SettingsError(f"{str(path)!r} is no kind of picture", "Name a file .html, .png, .svg or .json.")
    require("altair")
    require("vl_convert")


def require(package: str) -> None:
    """Raise MissingExtra unless a package is there."""
    if find_spec(package) is None:
        raise MissingExtra(f"pictures need {package}", "pip install 'windrow-delta[plot]'")


class _Harmless(json.JSONEncoder):  # a name that reads `</script>` must not end the script that holds it
    def encode(self, o: Any) -> str:
        return super().encode(o).replace("<", "\\u003c")

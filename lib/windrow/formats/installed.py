"""The formats that are installed: Windrow's own, and those that other packages register as entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from windrow.errors import SettingsError
from windrow.formats.failure import failed

if TYPE_CHECKING:
    from windrow.formats.format import Build

GROUP = "windrow.formats"
OWN = {
    "csv": EntryPoint("csv", "windrow.formats.csv:build", GROUP),
    "json": EntryPoint("json", "windrow.formats.json:build", GROUP),
    "native": EntryPoint("native", "windrow.formats.native:build", GROUP),
    "lines": EntryPoint("lines", "windrow.formats.lines:build", GROUP),
    "length-prefixed": EntryPoint("length-prefixed", "windrow.formats.counted:build", GROUP),
}


def require_installed(name: str) -> None:
    """Raise ValueError, which names the installed formats, for a format that is not one of them."""
    if name not in OWN and name not in names():
        raise ValueError(f"no such format is installed; installed: {', '.join(names())}")


def names() -> list[str]:
    """Return the names of all formats."""
    return [*OWN, *sorted(_others().keys() - OWN.keys())]


def builder(name: str) -> Build:
    """Return the function that builds a format. Raises FormatFailed and SettingsError."""
    found = {str(one.dist and one.dist.name): one for one in _others().get(name, ())}
    if name not in OWN and len(found) > 1:
        raise SettingsError(f"the packages {' and '.join(sorted(found))} both have a format {name!r}", "Uninstall one.")
    entry = OWN.get(name) or next(iter(found.values()))
    try:
        loaded: Build = entry.load()
    except Exception as error:
        raise failed(name, f"be loaded from {entry.value}", error) from error
    return loaded


def _others() -> dict[str, list[EntryPoint]]:
    """Return the entry points of other packages by the name of the format."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(entry)
    return found

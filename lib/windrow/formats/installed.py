"""The formats that are installed: Windrow's own, and those that other packages register as entry points.

If a format's code fails, the error names the format.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from windrow.errors import FormatPluginError, SettingsError, first_line

if TYPE_CHECKING:
    from windrow.formats.format import Build

TRANSIENT = (OSError, MemoryError)  # the next try may succeed, so no record is to blame
HINT = "Nothing was written. Fix its package, and run again."
GROUP = "windrow.formats"
OWN = {
    "csv": EntryPoint("csv", "windrow.formats.csv:build", GROUP),
    "json": EntryPoint("json", "windrow.formats.objects:build", GROUP),
    "native": EntryPoint("native", "windrow.formats.native:build", GROUP),
    "lines": EntryPoint("lines", "windrow.formats.lines:build", GROUP),
    "length-prefixed": EntryPoint("length-prefixed", "windrow.formats.framing_by_length:build", GROUP),
}


class TransientFormatError(FormatPluginError):
    """The format failed for a reason that may pass, so the microbatch is retried."""

    retryable = True


def plugin_error(name: str | None, what: str, error: Exception) -> FormatPluginError:
    """Return the error for a format that could not do something."""
    kind = TransientFormatError if isinstance(error, TRANSIENT) else FormatPluginError
    return kind(f"the format {name!r} cannot {what}: {type(error).__name__}: {first_line(error)}", HINT)


def names() -> list[str]:
    """Return the names of all formats."""
    return [*OWN, *sorted(_entry_points().keys() - OWN.keys())]


def builder(name: str) -> Build:
    """Return the function that builds a format. Raises FormatPluginError and SettingsError."""
    providers = {str(entry.dist and entry.dist.name): entry for entry in _entry_points().get(name, ())}
    if name not in OWN and len(providers) > 1:
        raise SettingsError(
            f"the packages {' and '.join(sorted(providers))} both provide a format {name!r}", "Uninstall one."
        )
    entry = OWN.get(name) or next(iter(providers.values()), None)
    if entry is None:
        raise FormatPluginError(f"the format {name!r} is not installed here", "Install its package on every machine.")
    try:
        loaded: Build = entry.load()
    except Exception as error:
        raise plugin_error(name, f"be loaded from {entry.value}", error) from error
    return loaded


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Return the entry points of other packages by the name of the format."""
    providers: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        providers.setdefault(entry.name, []).append(entry)
    return providers

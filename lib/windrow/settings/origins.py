"""Find where each setting got its value: a flag, an environment variable, the settings file, or the default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windrow.settings.file import holds, read_file, variable_of
from windrow.settings.settings import FILE, Settings
from windrow.settings.template import literal


@dataclass(frozen=True, slots=True)
class Effective:
    """The effective value of a setting, written as in `windrow.toml`, and where it came from."""

    name: str
    value: str
    origin: str


def effective(file: str | Path | None = None, **flags: Any) -> list[Effective]:
    """Return every setting. Raises the errors of `Settings.load`."""
    values = Settings.load(file, **flags).model_dump()
    path = Path(file or FILE)
    content = read_file(path) if file is not None or path.exists() else {}
    return [Effective(".".join(name), text, _origin(name, flags, content, path)) for name, text in _values(values)]


def _origin(name: tuple[str, ...], flags: Mapping[str, Any], content: Mapping[str, Any], path: Path) -> str:
    if holds(flags, name):
        return f"flag --{'-'.join(name)}".replace("_", "-")
    if (variable := variable_of(name)) is not None:
        return f"variable {variable}"
    return str(path) if holds(content, name) else "default"


def _values(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the name of each setting, part by part, and its value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _values(value, (*above, name))
        else:
            yield (*above, name), literal(value)

"""Find where each setting got its value: a flag, an environment variable, the settings file, or the default."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from windrow.settings.file import PREFIX, read_file
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
    settings = Settings.load(file, **flags)
    path = Path(file or FILE)
    content = read_file(path) if file is not None or path.exists() else {}
    return [Effective(".".join(name), text, _origin(name, flags, content, path)) for name, text in _values(settings)]


def _origin(name: tuple[str, ...], flags: Mapping[str, Any], content: Mapping[str, Any], path: Path) -> str:
    if _holds(flags, name):
        return f"flag --{'-'.join(name)}".replace("_", "-")
    variables = {variable.upper(): variable for variable in os.environ}
    for depth in range(len(name), 0, -1):
        variable = variables.get(f"{PREFIX}{'__'.join(name[:depth])}".upper())
        if variable:
            return f"variable {variable}"
    return str(path) if _holds(content, name) else "default"


def _holds(values: Any, name: tuple[str, ...]) -> bool:
    for part in name:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True


def _values(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the name of each setting, part by part, and its value."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            for inner in type(value).model_fields:
                yield from _leaves((name, inner), getattr(value, inner))
        else:
            yield from _leaves((name,), value)


def _leaves(name: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, Mapping):
        yield from (((*name, key), literal(key, inner)) for key, inner in value.items())
    else:
        yield name, literal(name[-1], value)

"""A system under test: how it is started, and what its rows mean. A TOML file says both."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

BUILT_IN = Path(__file__).parent / "systems"
NAMES = ("windrow", "windrow_embedded", "window", "session_window", "transform_with_state", "foreach_batch")


class InvalidSystemError(ValueError):
    """The TOML file does not describe a system."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A query of DuckDB over `output`, which is a Delta table at a path below the output directory."""

    table: str
    query: str


@dataclass(frozen=True, slots=True)
class System:
    """A writer: its command, which runs until the input is consumed, and the queries over what it wrote."""

    name: str
    title: str
    command: tuple[str, ...]
    batches: Mapping
    rejected: Mapping | None = None
    claims_conformance: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def command_for(self, depot: Path, output: Path, checkpoint: Path) -> list[str]:
        """Return the command with the directories in it."""
        places = {"{depot}": depot, "{output}": output, "{checkpoint}": checkpoint}
        return [_with_places(word, places) for word in self.command]


def load_system(name: str) -> System:
    """Load a system of the suite by its name, or a file that ends in .toml; `{here}` is the directory of the file."""
    file = Path(name) if name.endswith(".toml") else BUILT_IN / f"{name}.toml"
    try:
        described = tomllib.loads(file.read_text(encoding="utf-8"))
        tables = {part: Mapping(**described.pop(part)) for part in ("batches", "rejected") if part in described}
        command = tuple(word.replace("{here}", str(file.resolve().parent)) for word in described.pop("command"))
        return System(name=file.stem, command=command, **tables, **{"title": file.stem} | described)
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise InvalidSystemError(f"{file}: {error}") from error


def _with_places(word: str, places: dict[str, Path]) -> str:
    for name, place in places.items():
        word = word.replace(name, str(place))
    return word

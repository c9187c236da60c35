"""Read the settings file, and find the line of a setting for error messages."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from windrow.errors import SettingsError, UsageError

PREFIX = "WINDROW_"
RENAMED = {"depot": ("depot", "table"), "depot_columns": ("depot", "columns")}
QUOTED = re.compile(r"""field (['"])(.+?)\1""")


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a settings file by field name. Raises SettingsError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}", "Name another with --config.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}", _hint(path, str(error))) from error
    return _flat(content)


def _hint(path: Path, error: str) -> str:
    """Return a hint for a file that is not TOML; usually, a line was pasted below another."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if re.search(r"^depot\s*=", text, re.MULTILINE) and re.search(r"^\[depot[].]", text, re.MULTILINE):
        return 'With [depot.columns], write [depot] and table = "..." in place of depot = "...".'
    if "overwrite" in error or "twice" in error:
        return "An earlier line has the same key: keep one of the two."
    if "Invalid value" in error or "Expected newline" in error:
        return 'Put text in quotes, as in window = "10s".'
    return "See the example that `windrow init` writes."


def line_of(text: str, key: Sequence[str]) -> int | None:
    """Return the line in which a key begins, counted from 1; None if the text does not have it.

    The key ends where the shortest prefix that is valid TOML and has it ends, and begins after the previous prefix.
    """
    lines, begin = text.split("\n"), 1
    for number in range(1, len(lines) + 1):
        try:
            content = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue
        if has_key(content, key):
            return begin
        begin = number + 1
    return None


def combine_errors(errors: Sequence[UsageError]) -> UsageError:
    """Return one error with the messages of all."""
    first, *others = errors
    if not others:
        return first
    lines = [f"\n{error.message}. {error.hint}" for error in errors]
    return SettingsError(f"{len(errors)} settings are invalid{''.join(lines)}")


def with_location(error: UsageError, path: Path | None) -> UsageError:
    """Return the error with the variable, or with the file and line, that the setting is from.

    If the file lacks the setting, the line is that of its table.
    """
    variable = variable_of(error.setting)
    if variable is not None:
        return type(error)(f"variable {variable}: {error.message}", error.hint)
    if path is None:
        return error
    text = path.read_text(encoding="utf-8-sig")
    for length in range(len(error.setting), 0, -1):
        top, *rest = error.setting[:length]
        line = line_of(text, [top, *rest]) or line_of(text, [*RENAMED.get(top, (top,)), *rest])
        if line is not None:
            return type(error)(f"{path}, line {line}: {error.message}", error.hint)
    return error


def setting_in(message: str, known: Container[str], named: str) -> tuple[str, ...]:
    """Return the setting that a message is about, part by part; empty for the table as a whole.

    The setting is a quoted key of the inner table `named`, or the first word that is a known one.
    """
    if quoted := QUOTED.search(message):
        return named, quoted[2]
    return tuple(word for word in re.findall(r"\w+", message) if word in known)[:1]


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file with the keys of a table `[depot]` renamed to the fields of `Settings`.

    In TOML `depot` is a string or a table: with `[depot.columns]`, the location is `table` under `[depot]`.
    """
    depot = content.get("depot")
    if not isinstance(depot, Mapping):
        return dict(content)
    known = {"table": "depot", "columns": "depot_columns"}
    for name in depot:
        if name not in known:
            raise SettingsError(f"unknown setting 'depot.{name}'", "Use only table and columns in [depot].")
    rest = {name: value for name, value in content.items() if name != "depot"}
    return rest | {known[name]: value for name, value in depot.items()}


def has_key(content: Any, key: Sequence[str]) -> bool:
    """Tell whether nested tables have a key, given part by part."""
    for part in key:
        if not isinstance(content, Mapping) or part not in content:
            return False
        content = content[part]
    return True


def variable_of(setting: Sequence[str]) -> str | None:
    """Return the environment variable that sets a setting, or the innermost table around it; None if there is none."""
    variables = {variable.upper(): variable for variable in os.environ}
    names = (f"{PREFIX}{'__'.join(setting[:depth])}".upper() for depth in range(len(setting), 0, -1))
    return next((variables[name] for name in names if name in variables), None)

"""The commented `windrow.toml` that `windrow init` writes, made from the settings themselves."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from windrow.durations import text
from windrow.settings import Settings

DURATIONS = {"window", "max_delay", "max_leap", "idle_grace", "max_clock_skew", "every"}

COLUMNS = """\
# Files: expressions (Spark SQL) over their columns; a column left out maps to its own name.
# [ingest.columns]
# source = "split_part(topic, '/', 2)"
# key = "split_part(topic, '/', 2)"
# type = "topic"
"""


def settings_file(settings: Settings) -> str:
    """Return a settings file with every setting, its value and what it means."""
    top, tables = [], []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if name == "ingest":
            tables.append(_columns(value.columns))
        elif isinstance(value, BaseModel):
            tables.append("\n".join([f"[{name}]", *_lines(value)]) + "\n")
        else:
            top.append(_line(settings, name))
    return "\n".join(["# Windrow's settings. Environment: WINDROW_RULES__WINDOW=10s. Flags win.", *top, ""]) + (
        "\n" + "\n".join(tables)
    )


def _lines(part: BaseModel) -> list[str]:
    return [_line(part, name) for name in type(part).model_fields]


def _line(part: BaseModel, name: str) -> str:
    description = type(part).model_fields[name].description
    assignment = f"{name} = {_literal(name, getattr(part, name))}"
    return f"{assignment:<32}# {description}" if description else assignment


def _literal(name: str, value: Any) -> str:
    if name in DURATIONS:
        return json.dumps("never" if value is None else text(value))
    return str(value) if isinstance(value, int) else json.dumps(value)


def _columns(columns: dict[str, str]) -> str:
    if not columns:
        return COLUMNS
    return "\n".join(["[ingest.columns]", *(f"{name} = {json.dumps(value)}" for name, value in columns.items())]) + "\n"

"""Write settings as in `windrow.toml`: the commented file of `windrow init`, and each value with its origin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

from pydantic import BaseModel, SecretStr

from windrow.formats.settings import FormatSettings
from windrow.settings.file import has_key, read_file, variable_of
from windrow.settings.settings import FILE, Settings

DEPOT = """\
# A depot of your own, with other columns: write this instead of depot = "..." above.
# [depot]
# table = "main.bronze.events"
# [depot.columns]
# source = "device_id"              # whose clock it is
# key = "device_id"
# type = "'measurement'"
# event_time = "measured_at"
# received_at = "ingested_at"
# payload = "to_json(struct(*))"    # the whole row
"""

# What is written instead of a table without values, or with secret ones.
EXAMPLES = {
    "ingest.columns": """\
# Files: expressions (Spark SQL) over their columns; a column left out maps to its own name.
# [ingest.columns]
# source = "split_part(topic, '/', 2)"
# key = "split_part(topic, '/', 2)"
# type = "topic"
""",
    "storage_options": """\
# Object stores: options that the environment lacks; see docs/howto/storage.md.
# [storage_options]
# AWS_ENDPOINT_URL = "https://s3.example.com"
# AWS_REGION = "eu-central-1"
""",
    "table_properties": """\
# Delta properties of tables that Spark creates; they override Windrow's own. See docs/platforms.md.
# [table_properties]
# "delta.enableDeletionVectors" = "true"
""",
    "kafka.properties": """\
# Kafka: properties of librdkafka, for TLS and passwords; see docs/howto/kafka.md.
# [kafka.properties]
# "security.protocol" = "SASL_SSL"
# "sasl.mechanism" = "SCRAM-SHA-512"
# "sasl.username" = "windrow"
""",
}

FIELDS = {"ts": "timestamp[us]", "device": "string", "value": "float64"}


def settings_file(settings: Settings) -> str:
    """Return a settings file with every setting, its value unless it is secret, and its description."""
    top, tables = [], []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if name == "depot_columns":
            own = f"[depot]\ntable = {toml_literal(settings.depot)}\n{_columns('depot.columns', value)}"
            tables.append(own if value else DEPOT)
        elif name == "format":
            tables.append(_format(value))
        elif name == "depot" and settings.depot_columns:
            continue
        elif isinstance(value, BaseModel):
            fields = {inner: getattr(value, inner) for inner in type(value).model_fields}
            plain = [_line(value, inner) for inner, values in fields.items() if not isinstance(values, Mapping)]
            tables.append("\n".join([f"[{name}]", *plain]) + "\n")
            inside = {f"{name}.{inner}": values for inner, values in fields.items() if isinstance(values, Mapping)}
            tables += [_columns(section, values) or EXAMPLES[section] for section, values in inside.items()]
        elif isinstance(value, Mapping):
            tables.append(_columns(name, value) or EXAMPLES[name])
        else:
            top.append(_line(settings, name))
    head = "# Windrow's settings. Environment: WINDROW_RULES__WINDOW=10s. Flags win."
    return "\n".join([head, *top, "", *tables])


def proposed_file(sections: Mapping[str, Sequence[tuple[str, str, str]]], looked_at: str) -> str:
    """Return a settings file of proposals: by section the name, value and reason of each, from what was `looked_at`."""
    lines = [f"# Proposed by `windrow init --from` from {looked_at}. `windrow settings` shows every setting."]
    for section, choices in sections.items():
        lines += ["", f"[{section}]"] if section else []
        for name, value, reason in choices:
            assignment = f"{name} = {toml_literal(value)}"
            lines += [f"{assignment:<48}  # {reason}" if reason else assignment]
    return "\n".join(lines) + "\n"


def _format(part: FormatSettings) -> str:
    """Return the section of the format; without a format it is a comment, because TOML has no null."""
    if part == FormatSettings():
        example = _format(FormatSettings(type="csv", fields=FIELDS))
        return "# A raw depot: what is in its chunks; see docs/formats.md.\n" + indent(example, "# ")
    lacking = {"fields", "options"} if part.type else {"fields", "options", "type"}
    lines = [_line(part, name) for name in type(part).model_fields if name not in lacking]
    inner = _columns("format.fields", part.fields) + _columns("format.options", part.options)
    return "\n".join(["[format]", *lines]) + "\n" + inner


def _line(part: BaseModel, name: str) -> str:
    description = type(part).model_fields[name].description
    value = part.model_dump(include={name})[name]
    assignment = f"{name} = {toml_literal('' if isinstance(value, SecretStr) else value)}"
    return f"{assignment:<32}# {description}" if description else assignment


def toml_literal(value: Any) -> str:
    """Return a value as written in `windrow.toml`: JSON that is TOML too; a secret as `***`."""
    if isinstance(value, SecretStr):
        value = "***" if value else ""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _columns(section: str, columns: Mapping[str, Any]) -> str:
    """Return a table as TOML without its secrets; the empty string if it has no other value."""
    shown = {name: value for name, value in columns.items() if not isinstance(value, SecretStr)}
    keys = {name: name if re.fullmatch("[A-Za-z0-9_-]+", name) else toml_literal(name) for name in shown}
    lines = [f"{keys[name]} = {toml_literal(value)}" for name, value in shown.items()]
    return "\n".join([f"[{section}]", *lines]) + "\n" if shown else ""


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """The effective value of a setting, written as in `windrow.toml`, and where it came from."""

    name: str
    value: str
    origin: str


def effective_settings(file: str | Path | None = None, **flags: Any) -> list[EffectiveSetting]:
    """Return every setting. Raises the errors of `Settings.load`."""
    values = Settings.load(file, **flags).model_dump()
    path = Path(file or FILE)
    content = read_file(path) if file is not None or path.exists() else {}
    effective = []
    for name, text in _values(values):
        origin = str(path) if has_key(content, name) else "default"
        if has_key(flags, name):
            origin = f"flag --{'-'.join(name)}".replace("_", "-")
        elif (variable := variable_of(name)) is not None:
            origin = f"variable {variable}"
        effective.append(EffectiveSetting(".".join(name), text, origin))
    return effective


def _values(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _values(value, (*above, name))
        else:
            yield (*above, name), toml_literal(value)

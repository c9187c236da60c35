"""Formats of raw depots, and what a package needs to add one: see docs/howto/format.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windrow.formats.automaton import Automaton
    from windrow.formats.fields import Field
    from windrow.formats.format import Build, Format
    from windrow.formats.record_reader import per_record
    from windrow.formats.records import Parser, ParseResult, Records
    from windrow.formats.settings import FormatSettings

_HOMES = {
    "Automaton": "automaton",
    "Build": "format",
    "Field": "fields",
    "Format": "format",
    "FormatSettings": "settings",
    "ParseResult": "records",
    "Parser": "records",
    "Records": "records",
    "per_record": "record_reader",
}
__all__ = ["Automaton", "Build", "Field", "Format", "FormatSettings", "ParseResult", "Parser", "Records", "per_record"]


def __getattr__(name: str) -> Any:
    """Load the public names when they are first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'windrow.formats' has no attribute {name!r}")
    return getattr(import_module(f"windrow.formats.{_HOMES[name]}"), name)

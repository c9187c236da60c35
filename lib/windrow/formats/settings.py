"""Build the format that `[format]` describes; its libraries are imported only when it is used."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from windrow.errors import MissingExtra, SettingsError
from windrow.formats import codecs, fields, grammar
from windrow.formats.counted import FixedFraming, LengthFraming
from windrow.formats.csv import Csv
from windrow.formats.format import Format, Header
from windrow.formats.framing import DelimitedFraming, Framing
from windrow.formats.lines import Lines
from windrow.formats.native import Native
from windrow.formats.part import FormatPart
from windrow.formats.records import Parser

Fields = tuple[fields.Field, ...]


def format_of(section: FormatPart) -> Format:
    """Return the format that the settings describe. Raises SettingsError and MissingExtra."""
    build = FORMATS.get(section.type or "")
    if build is None:
        raise SettingsError("[format] has no type", f"Set type to one of {', '.join(FORMATS)}.")
    try:
        return build(section, fields.parse(section.fields))
    except SettingsError as error:
        raise SettingsError(f"[format] {error.message}", error.hint) from None


def _csv(section: FormatPart, parsed: Fields) -> Format:
    parser = Csv(
        parsed,
        delimiter=section.delimiter.encode(),
        quote=section.quote.encode(),
        escape=section.escape.encode(),
        record=section.record_delimiter.encode(),
        nulls=tuple(text.encode() for text in section.nulls),
    )
    framing = DelimitedFraming(parser.automaton, parser.record, section.max_record_bytes)
    return _format(section, framing, parser, header=parser.header if section.header else None)


def _json(section: FormatPart, parsed: Fields) -> Format:
    parser: Parser = _with_msgspec("json").Json(parsed)
    delimiter = section.record_delimiter.encode()
    most = section.max_record_bytes
    if delimiter:
        return _format(section, DelimitedFraming(grammar.delimited(delimiter), delimiter, most), parser)
    framing = DelimitedFraming(grammar.objects(section.max_depth), b"\n", most, own=False)
    return _format(section, framing, parser)


def _lines(section: FormatPart, parsed: Fields) -> Format:
    parser = Lines(parsed, section.pattern, record=section.record_delimiter.encode(), nulls=section.nulls)
    return _format(section, DelimitedFraming(parser.automaton, parser.record, section.max_record_bytes), parser)


def _native(section: FormatPart, parsed: Fields) -> Format:
    parser = Native(parsed, section.byte_order)
    if parser.width > section.max_record_bytes:
        raise SettingsError(
            f"a record has {parser.width} bytes, but max_record_bytes is {section.max_record_bytes}",
            "Raise max_record_bytes.",
        )
    return _format(section, FixedFraming(parser.width, section.max_record_bytes), parser, text=False)


def _length_prefixed(section: FormatPart, parsed: Fields) -> Format:
    framing = LengthFraming(
        section.length_bytes, section.byte_order, section.length_includes_itself, section.max_record_bytes
    )
    kind = _with_msgspec("json").Json if section.values == "json" else _with_msgspec("msgpack").MessagePack
    parser: Parser = kind(parsed)
    return _format(section, framing, parser, text=False)


def _format(
    section: FormatPart, framing: Framing, parser: Parser, *, text: bool = True, header: Header | None = None
) -> Format:
    return Format(
        framing,
        parser,
        section.recorded() or "",
        section,
        text=text,
        header=header,
        decode=None
        if section.codec == "none"
        else partial(codecs.decode, codec=section.codec, most_bytes=section.max_decoded_bytes),
    )


def _with_msgspec(module: str) -> Any:
    """Import a module of this package that needs msgspec. Raises MissingExtra."""
    try:
        return importlib.import_module(f"windrow.formats.{module}")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "JSON and MessagePack records need msgspec", "pip install 'windrow-delta[formats]'"
        ) from error


FORMATS = {"csv": _csv, "json": _json, "native": _native, "lines": _lines, "length-prefixed": _length_prefixed}

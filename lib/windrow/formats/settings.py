"""The format that `[format]` describes. What a format needs is loaded with it."""

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
from windrow.formats.prefixed import PrefixFraming
from windrow.formats.records import Parser

Fields = tuple[fields.Field, ...]


def format_of(chosen: FormatPart) -> Format:
    """Return a format. Raises SettingsError that names the setting that is wrong."""
    made = MADE.get(chosen.type or "")
    if made is None:
        raise SettingsError("[format] says no type", f"Known are {', '.join(MADE)}.")
    try:
        return made(chosen, fields.parse(chosen.fields))
    except SettingsError as error:
        raise SettingsError(f"[format] {error.message}", error.hint) from None


def _csv(chosen: FormatPart, parsed: Fields) -> Format:
    parser = Csv(
        parsed,
        delimiter=chosen.delimiter.encode(),
        quote=chosen.quote.encode(),
        escape=chosen.escape.encode(),
        record=chosen.record_delimiter.encode(),
        nulls=tuple(text.encode() for text in chosen.nulls),
    )
    framing = DelimitedFraming(parser.automaton, parser.record, chosen.max_record_bytes)
    return _format(chosen, framing, parser, header=parser.header if chosen.header else None)


def _json(chosen: FormatPart, parsed: Fields) -> Format:
    parser: Parser = _with_msgspec("json").Json(parsed)
    delimiter = chosen.record_delimiter.encode()
    most = chosen.max_record_bytes
    if delimiter:
        return _format(chosen, DelimitedFraming(grammar.lines(delimiter), delimiter, most), parser)
    framing = DelimitedFraming(grammar.objects(chosen.max_depth), b"\n", most, own=False)
    return _format(chosen, framing, parser)


def _lines(chosen: FormatPart, parsed: Fields) -> Format:
    parser = Lines(parsed, chosen.pattern, record=chosen.record_delimiter.encode(), nulls=chosen.nulls)
    return _format(chosen, DelimitedFraming(parser.automaton, parser.record, chosen.max_record_bytes), parser)


def _native(chosen: FormatPart, parsed: Fields) -> Format:
    parser = Native(parsed, chosen.byte_order)
    if parser.width > chosen.max_record_bytes:
        raise SettingsError(
            f"a record has {parser.width} bytes, max_record_bytes is {chosen.max_record_bytes}", "Raise it."
        )
    return _format(chosen, FixedFraming(parser.width, chosen.max_record_bytes), parser, text=False)


def _length_prefixed(chosen: FormatPart, parsed: Fields) -> Format:
    prefix = PrefixFraming(
        chosen.length_bytes, chosen.byte_order, chosen.length_includes_itself, chosen.max_record_bytes
    )
    kind = _with_msgspec("json").Json if chosen.values == "json" else _with_msgspec("msgpack").MessagePack
    parser: Parser = kind(parsed)
    return _format(chosen, LengthFraming(prefix), parser, text=False)


def _format(
    chosen: FormatPart, framing: Framing, parser: Parser, *, text: bool = True, header: Header | None = None
) -> Format:
    return Format(
        framing,
        parser,
        chosen.recorded() or "",
        text=text,
        header=header,
        decode=None if chosen.codec == "none" else partial(_decoded, chosen.codec, chosen.max_decoded_bytes),
        max_held_bytes=chosen.max_held_bytes,
        remembered_chunks=chosen.remembered_chunks,
        max_chunks=chosen.max_chunks,
        max_read_bytes=chosen.max_read_bytes,
        executor_chunks=chosen.executor_chunks,
    )


def _with_msgspec(module: str) -> Any:
    """Return a module of this package that needs msgspec. Raises MissingExtra."""
    try:
        return importlib.import_module(f"windrow.formats.{module}")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "records of JSON or MessagePack need msgspec", "pip install 'windrow-delta[formats]'"
        ) from error


def _decoded(codec: codecs.Codec, most: int, buffer: bytes) -> bytes:
    return codecs.decode(buffer, codec, most)


MADE = {"csv": _csv, "json": _json, "native": _native, "lines": _lines, "length-prefixed": _length_prefixed}

"""Convert the texts of one field to values of its type, and find the texts that cannot be converted.

Each text is judged alone: neither its neighbours nor the number of bad texts matter. Nothing is trimmed, guessed or
rounded, except that a float becomes the nearest one. What each type accepts:

- integers: `7`, `+7`, `-7`, `007`, `-0`; not ` 7`, `7.0`, `1e3`, `0x1F`, `1_000`, nor numbers out of range
- `float32`, `float64`: `1.5`, `.5`, `5.`, `+1e3`, `nan`, `-inf`, `Infinity`, and `1e-999`, which is 0; not `1.8e309`,
  which is out of range, `NA`, `1,5`
- `decimal(p, s)`: `1.50`, `15e-1`, zeros after digit `s`; not another digit there, nor too many before the point
- `bool`: `true`, `TRUE`, `False`, `1`, `0`; not `t`, `yes`, `2`
- `date`: `2024-02-29`; not `2023-02-29`, `2024-2-9`, or one with a time of day
- `timestamp[...]`: see `times`; not leap seconds, `24:00`, or digits finer than the unit other than 0
- `string`: UTF-8; other bytes give `format_encoding`
- `binary`: any bytes
- `time[...]`: `12:00`, `12:00:00.5`; not `24:00`, or one with a zone
- `json`, lists, maps and structs: JSON

An empty text is a valid `string` or `binary` and bad for other types. Formats that read it as NULL do so before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.compiled import ByteArray, Flags, Ints
from windrow.errors import MissingExtraError
from windrow.formats import numerals, times
from windrow.formats.fields import RAW_JSON, Field, type_text
from windrow.formats.texts import Texts, are_utf8, bitmap

CAST, ENCODING = "format_cast", "format_encoding"
MAX_QUOTED = 40
ASCII = 0x7F
MAX_READ_BYTES = 4 * MAX_QUOTED + 4  # the most bytes that MAX_QUOTED + 1 characters can have
EXACT = {pa.float64(): (2**53, 22), pa.float32(): (2**24, 10)}


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """Values, NULL where the text was NULL or bad, and the numbers of the `bad` texts in ascending order.

    All bad texts share the `reason`; `detail` has one explanation for each.
    """

    values: pa.Array
    bad: Ints
    reason: str
    detail: pa.Array


def convert(texts: Texts | pa.Array, field: Field) -> ConversionResult:
    """Convert texts, or an array of `string` or `binary`, to the type of a field."""
    converted = texts if isinstance(texts, Texts) else Texts.of(texts)
    values, good = read(converted, field)
    bad = np.flatnonzero(converted.valid & ~good)
    reason = ENCODING if pa.types.is_string(field.type) and field.pattern != RAW_JSON else CAST
    what = "not UTF-8" if reason == ENCODING else f"not a valid {type_text(field)}"
    return ConversionResult(values, bad, reason, details(converted.take(bad), f"is {what}"))


def read(texts: Texts, field: Field) -> tuple[pa.Array, Flags]:
    """Return texts as values of a field's type, NULL where that fails, and which texts are good; NULL is not good."""
    if field.pattern == RAW_JSON:
        return _read_nested(texts, field)
    if pa.types.is_string(field.type):
        return _strings(texts)
    for holds, reader in READERS.items():
        if holds(field.type):
            return reader(texts, field)
    raise NotImplementedError(f"a text cannot become {field.type}")


def details(texts: Texts, what: str) -> pa.Array:
    """Return an explanation for each text: the text as `quote_bytes` shows it, then `what`."""
    if not texts.count:
        return pa.array([], pa.string())
    short = replace(
        texts, end=np.minimum(texts.end, texts.start + MAX_READ_BYTES), valid=np.ones(texts.count, np.bool_)
    )
    fine = are_utf8(*_places(short))
    odd = np.flatnonzero(~fine)
    whole = replace(short, valid=fine).array(pa.string())
    tail = pc.if_else(pc.greater(pc.utf8_length(whole), MAX_QUOTED), "'...", "'")
    shown = pc.binary_join_element_wise("'", pc.utf8_slice_codeunits(whole, 0, MAX_QUOTED), tail, "")
    if odd.size:
        mended = pa.array([quote_bytes(text) for text in short.some(odd)], pa.string())
        shown = pc.replace_with_mask(shown, pa.array(~fine), mended)
    return pc.binary_join_element_wise(shown, what, " ")


def quote_bytes(text: bytes) -> str:
    """Return bytes as a short quoted text for people."""
    shown = text[:MAX_READ_BYTES].decode(errors="backslashreplace")
    return f"'{shown}'" if len(shown) <= MAX_QUOTED else f"'{shown[:MAX_QUOTED]}'..."


Reader = Callable[[Texts, Field], tuple[pa.Array, Flags]]


def _strings(texts: Texts) -> tuple[pa.Array, Flags]:
    raw = texts.array(pa.binary())
    buffer = np.frombuffer(raw.buffers()[2], np.uint8)
    if buffer.max(initial=0) <= ASCII:
        return raw.view(pa.string()), texts.valid
    try:
        return raw.cast(pa.string()), texts.valid  # Arrow is faster, but does not say which texts are bad
    except pa.ArrowInvalid:
        good = are_utf8(*_places(texts))
        return replace(texts, valid=good).array(pa.string()), good


def _bytes(texts: Texts, _field: Field) -> tuple[pa.Array, Flags]:
    return texts.array(pa.binary()), texts.valid


def _integers(texts: Texts, field: Field) -> tuple[pa.Array, Flags]:
    bits = field.type.bit_width
    signed = pa.types.is_signed_integer(field.type)
    least, most = (2 ** (bits - 1), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    values = np.empty(texts.count, np.uint64)
    good = numerals.parse_integers(*_places(texts), np.uint64(least), np.uint64(most), values)
    return _array(field.type, values.astype(f"u{bits // 8}", copy=False), good), good


def _truths(texts: Texts, field: Field) -> tuple[pa.Array, Flags]:
    values = np.empty(texts.count, np.bool_)
    good = numerals.parse_booleans(*_places(texts), values)
    return _array(field.type, np.packbits(values, bitorder="little"), good), good


def _fractions(texts: Texts, field: Field) -> tuple[pa.Array, Flags]:
    """Read floats; Arrow finds the nearest float for those that are not simple."""
    values = np.empty(texts.count, np.float64)
    code = numerals.parse_floats(*_places(texts), *EXACT[field.type], values)
    good = code != numerals.BAD
    own = values.astype(f"f{field.type.bit_width // 8}", copy=False)
    hard = np.flatnonzero(code == numerals.FINE)
    if hard.size:
        spelled = pc.ascii_ltrim(texts.take(hard).array(pa.string()), characters="+")
        nearest = np.frombuffer(spelled.cast(field.type).buffers()[1], own.dtype)
        own[hard] = nearest
        good[hard] = np.isfinite(nearest)
    return _array(field.type, own, good), good


def _decimals(texts: Texts, field: Field) -> tuple[pa.Array, Flags]:
    values = np.empty((texts.count, 2), np.uint64)
    good = numerals.decimals(*_places(texts), field.type.precision, field.type.scale, values)
    return _array(field.type, values, good), good


def _temporal(texts: Texts, field: Field) -> tuple[pa.Array, Flags]:
    is_date, of_day = pa.types.is_date(field.type), pa.types.is_time(field.type)
    iso = times.ISO_DATE if is_date else times.ISO_TIME if of_day else times.ISO_MOMENT
    pattern = times.TimePattern.of(field.pattern, of_day=of_day) if field.pattern else iso
    digits, values = 0 if is_date else times.DIGITS[field.type.unit], np.empty(texts.count, np.int64)
    good = times.parse_timestamps(*_places(texts), pattern.steps, pattern is times.ISO_MOMENT, digits, values)
    counts = values // times.DAY_SECONDS if is_date else values
    return _array(field.type, counts.astype(f"i{field.type.bit_width // 8}", copy=False), good), good


def _read_nested(texts: Texts, field: Field) -> tuple[pa.Array, Flags]:
    try:
        from windrow.formats.shapes import read_json
    except ModuleNotFoundError as error:
        what = f"field {field.name!r}: {type_text(field)} needs msgspec"
        raise MissingExtraError(what, "pip install 'windrow-delta[formats]'") from error
    return read_json(texts, field)


def _places(texts: Texts) -> tuple[ByteArray, Ints, Ints, Flags]:
    return texts.buffer, texts.start, texts.end, texts.valid


def _array(type_: pa.DataType, values: npt.NDArray[Any], good: Flags) -> pa.Array:
    return pa.Array.from_buffers(type_, good.size, [bitmap(good), pa.py_buffer(values)])


READERS: dict[Callable[[pa.DataType], bool], Reader] = {
    pa.types.is_integer: _integers,
    pa.types.is_floating: _fractions,
    pa.types.is_decimal: _decimals,
    pa.types.is_boolean: _truths,
    pa.types.is_temporal: _temporal,
    pa.types.is_binary: _bytes,
    pa.types.is_nested: _read_nested,
}

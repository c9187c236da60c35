"""Lines: records whose fields are the groups of one regular expression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import string_array as array_of
from windrow.columnar.compiled import Flags
from windrow.errors import SettingsError, first_line
from windrow.formats import grammar
from windrow.formats.conversion import convert, details
from windrow.formats.fields import Field, require_unsized
from windrow.formats.format import Format
from windrow.formats.framing import DelimitedFraming
from windrow.formats.records import SYNTAX, FieldParser, ParseResult, Records, uniform_rejects
from windrow.formats.settings import FormatSettings
from windrow.formats.texts import Texts


def build(section: FormatSettings, fields: tuple[Field, ...]) -> Format:
    """Return the format `lines`."""
    parser, record = LineParser(fields, section.regex, section.null_values), section.record_delimiter.encode()
    _require_same(_groups(section.regex), [field.name for field in fields])
    return Format(DelimitedFraming(grammar.delimiter_automaton(record), record, section.max_record_bytes), parser)


@dataclass(frozen=True, slots=True)
class LineParser(FieldParser):
    """The parser of lines: each field is a group of `regex`, which must match the whole line. Other groups are ignored.

    The expression is in RE2 syntax and works on UTF-8; a line that is not UTF-8 is bad. A group's text is NULL if it is
    one of `nulls`. A group that took no part in the match has an empty text. An empty line that does not match is
    skipped. Raises SettingsError for an invalid expression.
    """

    fields: tuple[Field, ...]
    regex: str
    nulls: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        """Refuse invalid fields and expressions."""
        require_unsized(self.fields, "lines")
        _groups(self.regex)
        _groups(self._whole)

    def parse(self, records: Records) -> ParseResult:
        """Return the values of the good records, and the reasons of the bad ones."""
        lines = Texts(records.buffer, records.start, records.end, np.ones(records.count, np.bool_))
        text = convert(lines, Field("line", pa.string()))
        result = pc.extract_regex(text.values, pattern=self._whole)
        matched, empty = _flags(result.is_valid()), lines.start == lines.end
        wrong = ~matched & ~empty
        wrong[text.bad] = False
        unmatched = np.flatnonzero(wrong)
        detail = details(lines.take(unmatched), "does not match the regular expression")
        refused = [
            uniform_rejects(text.bad, text.reason, None, text.detail),
            uniform_rejects(unmatched, SYNTAX, None, detail),
        ]
        groups = result.filter(result.is_valid())
        values = (convert(self._texts(groups.field(field.name)), field) for field in self.fields)
        return self.join(values, np.flatnonzero(matched), refused, np.flatnonzero(~matched & empty))

    @property
    def _whole(self) -> str:
        return rf"\A(?:{self.regex})\z"

    def _texts(self, values: pa.Array) -> Texts:
        return replace(Texts.of(values), valid=~_flags(pc.is_in(values, value_set=array_of(self.nulls))))


def _groups(regex: str) -> list[str]:
    try:
        return [group.name for group in pc.extract_regex(array_of([]), pattern=regex).type]
    except pa.ArrowInvalid as error:
        raise SettingsError(f"the regular expression: {first_line(error)}", "Use RE2 syntax.") from None


def _require_same(groups: Sequence[str], names: Sequence[str]) -> None:
    for group, count in Counter(groups).items():
        if count > 1:
            raise SettingsError(f"the regular expression has two groups {group!r}", "Rename one.")
        if group not in names:
            raise SettingsError(f"the group {group!r} is not a field", "Add it to fields, or write (?:...).")
    for name in names:
        if name not in groups:
            there = ", ".join(groups) or "none"
            raise SettingsError(f"the regular expression has no group {name!r}", f"Its groups: {there}.")


def _flags(values: pa.Array) -> Flags:
    return np.asarray(values.to_numpy(zero_copy_only=False), np.bool_)

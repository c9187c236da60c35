"""Lines: records of which one regular expression says where the fields are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import texts as array_of
from windrow.errors import SettingsError, first_line
from windrow.formats import columns, grammar
from windrow.formats.automaton import Automaton
from windrow.formats.conversion import convert, said
from windrow.formats.fields import Field, require_flat, require_unsized
from windrow.formats.records import Ints, Parsed, Records, alike
from windrow.formats.texts import Flags, Texts

SYNTAX = "format_syntax"
NEWLINE, RETURN = b"\n", ord("\r")


@dataclass(frozen=True, slots=True)
class Lines:
    """The values of lines: each field is a group of `regex`, which must match the line from begin to end.

    The expression is one of RE2, over UTF-8: a line that is none is bad. What a group matched is NULL where it is one
    of `nulls`; a group that took no part in the match has the empty text. An empty line that does not match is skipped.
    Of the fields only those in `only` are converted, if it is given. Raises SettingsError for a wrong expression, and
    where its groups are not the fields.
    """

    fields: tuple[Field, ...]
    regex: str
    record: bytes = b"\n"
    nulls: tuple[str, ...] = ("",)
    only: frozenset[str] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        require_flat(self.fields, "lines")
        require_unsized(self.fields, "lines")
        _require_same(_groups(self.regex), [field.name for field in self.fields])
        _groups(self._whole)

    @property
    def automaton(self) -> Automaton:
        """Return what cuts bytes into the records that this reads."""
        return grammar.lines(self.record)

    @property
    def schema(self) -> pa.Schema:
        """Return the fields that are converted, and their types."""
        return columns.schema(self._wanted)

    def parse(self, records: Records) -> Parsed:
        """Return the values of the good records, and the reasons of the bad ones."""
        lines = Texts(records.buffer, records.begin, self._ends(records), np.ones(records.count, np.bool_))
        text = convert(lines, Field("line", pa.string()))
        found = pc.extract_regex(text.values, pattern=self._whole)
        matched, empty = _flags(found.is_valid()), lines.begin == lines.end
        wrong = ~matched & ~empty
        wrong[text.bad] = False
        unmatched = np.flatnonzero(wrong)
        detail = said(lines.take(unmatched), "does not match the regular expression")
        refused = [alike(text.bad, text.reason, None, text.detail), alike(unmatched, SYNTAX, None, detail)]
        groups = found.filter(found.is_valid())
        values = (self._texts(groups.field(field.name)) for field in self._wanted)
        return columns.parsed(self._wanted, values, np.flatnonzero(matched), refused, np.flatnonzero(~matched & empty))

    @property
    def _wanted(self) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if self.only is None or field.name in self.only)

    @property
    def _whole(self) -> str:
        return rf"\A(?:{self.regex})\z"

    def _ends(self, records: Records) -> Ints:
        if self.record != NEWLINE or not records.buffer.size:
            return records.end
        return records.end - ((records.end > records.begin) & (records.buffer[records.end - 1] == RETURN))

    def _texts(self, values: pa.Array) -> Texts:
        return replace(Texts.of(values), valid=~_flags(pc.is_in(values, value_set=array_of(self.nulls))))


def _groups(regex: str) -> list[str]:
    """Return the names of the groups."""
    try:
        return [group.name for group in pc.extract_regex(array_of([]), pattern=regex).type]
    except pa.ArrowInvalid as error:
        raise SettingsError(f"the regular expression: {first_line(error)}", "Write it as for RE2.") from None


def _require_same(groups: Sequence[str], names: Sequence[str]) -> None:
    for group, count in Counter(groups).items():
        if count > 1:
            raise SettingsError(f"the regular expression has two groups {group!r}", "Rename one.")
        if group not in names:
            raise SettingsError(f"the group {group!r} is no field", "Give it a type in fields, or write (?:...).")
    for name in names:
        if name not in groups:
            there = ", ".join(groups) or "none"
            raise SettingsError(f"the field {name!r} is no group of the regular expression", f"Its groups: {there}.")


def _flags(values: pa.Array) -> Flags:
    return np.asarray(values.to_numpy(zero_copy_only=False), np.bool_)

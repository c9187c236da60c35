"""Fields: what of a line of JSON is which column of a message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from windrow.errors import SettingsError
from windrow.model import messages

WHOLE = "*"
TEXT = re.compile(r"'((?:[^']|'')*)'")
TEXTS = ("source", "key", "type", "payload")


@dataclass(frozen=True, slots=True)
class Fields:
    """Which field of a line gives each column of a message, or which text; the payload may be the whole line.

    A field that gives none makes the line no message, unless the whole line is kept: what is in nobody's column would
    be lost in silence.
    """

    names: dict[str, str]
    texts: dict[str, str]
    whole: bool

    @classmethod
    def of(cls, given: Sequence[str]) -> Fields:
        """Read `column=field`, `column='text'` and `payload=*`; a column left out is the field of its own name.

        Raises SettingsError.
        """
        names = {name: name for name in messages.COLUMNS}
        texts = {}
        for one in given:
            column, equals, value = one.partition("=")
            if not equals or not value or column not in names:
                _refuse(one)
            text = TEXT.fullmatch(value)
            if value == WHOLE or text:
                allowed = ("payload",) if value == WHOLE else TEXTS
                if column not in allowed:
                    _refuse(one)
                texts[column] = value if text is None else text[1].replace("''", "'")
            names[column] = value
        whole = names["payload"] == WHOLE
        return cls({name: field for name, field in names.items() if name not in texts}, texts, whole)


def _refuse(given: str) -> NoReturn:
    raise SettingsError(
        f"--column {given!r} says nothing",
        f"Say column=field, or column='text' for source, key, type and payload, or payload=* for the whole line. "
        f"Columns are {', '.join(messages.COLUMNS)}.",
    )

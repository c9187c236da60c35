"""Map the fields of a JSON line to the columns of a message."""

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
    """The field or the constant text that fills each column of a message; the payload may be the `whole` line.

    A line with a field that fills no column is not a message, unless the whole line is kept: the field would be lost
    silently.
    """

    names: dict[str, str]
    texts: dict[str, str]
    whole: bool

    @classmethod
    def of(cls, given: Sequence[str]) -> Fields:
        """Read `column=field`, `column='text'` and `payload=*`; other columns take the field of the same name.

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
        f"--column {given!r} is not valid",
        f"Use column=field, or column='text' for source, key, type and payload, or payload=* for the whole line. "
        f"The columns are {', '.join(messages.COLUMNS)}.",
    )

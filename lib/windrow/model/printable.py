"""Make text from data safe to show: a device chooses its key, and a key must not control the terminal that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

# Control characters except line feed and tab, direction marks, line separators, surrogates, the BOM, noncharacters.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def printable(text: str) -> str:
    r"""Return a text with an escape such as `\x1b` for each character that a terminal or a picture could act on."""
    return text if text.isprintable() else UNSAFE.sub(_escape, text)


def json_text(
    document: Any, encoding: str = "utf-8", indent: int | None = None, default: Callable[[Any], Any] | None = None
) -> str:
    """Return a document as JSON, with JSON escapes for characters that are unsafe or not in the encoding."""
    unicode = encoding.lower().startswith("utf")
    return UNSAFE.sub(_escape_long, json.dumps(document, indent=indent, default=default, ensure_ascii=not unicode))


def pluralize(number: int, noun: str) -> str:
    """Return `1 message`, `2 messages`, `3 batches`."""
    plural = noun + ("es" if noun.endswith(("ch", "s")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def _escape(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]


def _escape_long(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"

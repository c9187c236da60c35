"""Topic patterns: which topics are subscribed to, and which columns of a message their levels are.

A pattern is a topic with names in it: `plant/{key}/{type...}`. `{key}` is one level, `{type...}` all that are left, at
least one; `+` and `#` are the same without a name. All else must be there letter by letter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from windrow.errors import SettingsError

NAMES = ("source", "key", "type")
LONGEST = 65_535  # bytes of a topic
HINT = "A pattern is like plant/{key}/{type...}; the names are source, key and type."
ONE, REST = "+", "#"

_NAME = re.compile(r"\{(\w*)(\.\.\.)?\}")


@dataclass(frozen=True, slots=True)
class Columns:
    """What a topic says of a message; None where the pattern has no such name."""

    source: str | None = None
    key: str | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern: its levels as a filter of MQTT has them, and the names of some."""

    text: str
    levels: tuple[str, ...]
    names: tuple[str | None, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Return a pattern. Raises SettingsError with the level that is wrong."""
        if not text or "\0" in text or len(text.encode()) > LONGEST:
            raise SettingsError(f"{text[:80]!r} is no topic pattern", HINT)
        if text.startswith("$share/"):
            raise SettingsError(f"topic pattern {text!r} names a group", "Say it with group in [mqtt].")
        parts = text.split("/")
        read = [_level(part, number, len(parts), text) for number, part in enumerate(parts, 1)]
        names = [name for _, name in read if name is not None]
        for name in names:
            if names.count(name) > 1:
                raise SettingsError(f"topic pattern {text!r} has {{{name}}} twice", HINT)
        return cls(text, tuple(level for level, _ in read), tuple(name for _, name in read))

    @property
    def filter(self) -> str:
        """Return what a broker is asked for."""
        return "/".join(self.levels)

    def match(self, topic: str) -> Columns | None:
        """Return what a topic says, None when it is not one of these."""
        parts = topic.split("/")
        if not _covers(self.levels, parts):
            return None
        found: dict[str, str] = {}
        for at, (level, name) in enumerate(zip(self.levels, self.names, strict=True)):
            if name is not None:
                if at >= len(parts):
                    return None
                found[name] = "/".join(parts[at:]) if level == REST else parts[at]
        return Columns(**found)


@dataclass(frozen=True, slots=True)
class Topics:
    """The patterns of a bridge; the first that matches says what a topic means."""

    patterns: tuple[Pattern, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Topics:
        """Return the patterns. Raises SettingsError."""
        if not texts:
            raise SettingsError("no topics are subscribed to", "Name some: topics in [mqtt], or --topic PATTERN.")
        return cls(tuple(Pattern.parse(text) for text in texts))

    def match(self, topic: str) -> Columns | None:
        """Return what a topic says, None when no pattern matches."""
        return next((found for one in self.patterns if (found := one.match(topic)) is not None), None)

    def filters(self) -> list[str]:
        """Return what a broker is asked for, without what others cover: it would send such a message twice."""
        kept: list[Pattern] = []
        for one in self.patterns:
            if any(_covers(other.levels, one.levels) for other in kept):
                continue
            kept = [other for other in kept if not _covers(one.levels, other.levels)] + [one]
        return [one.filter for one in kept]


def _level(part: str, number: int, count: int, text: str) -> tuple[str, str | None]:
    """Return a level of a pattern as MQTT has it, and its name."""
    named = _NAME.fullmatch(part)
    rest = part == REST or bool(named and named[2])
    where = f"topic pattern {text!r}, level {number}"
    if rest and number < count:
        raise SettingsError(f"{where}: {part} takes all levels, and others follow", HINT)
    if part in {ONE, REST}:
        return part, None
    if named:
        if named[1] not in NAMES:
            raise SettingsError(f"{where}: there is no column {named[1]!r}", HINT)
        return REST if rest else ONE, named[1]
    if set(part) & set("{}+#"):
        raise SettingsError(f"{where}: {part!r} is neither a word nor a name", f"A name takes a whole level. {HINT}")
    return part, None


def _covers(levels: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether a filter matches all that another one does, or a topic.

    `a/#` is also `a`. What begins with $ is the broker's own, and no wildcard at the begin means it.
    """
    if others[0].startswith("$") and levels[0] in {ONE, REST}:
        return False
    for at, level in enumerate(levels):
        if level == REST:
            return True
        if at >= len(others) or others[at] == REST or (level != ONE and level != others[at]):
            return False
    return len(levels) == len(others)

"""Topic patterns: which topics the bridge subscribes to, and which columns their levels fill.

A pattern is a topic with names in it: `plant/{key}/{type...}`. `{key}` is one level; `{type...}` is all remaining
levels, at least one. `+` and `#` are the same without a name. Everything else must match literally.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from windrow.errors import SettingsError

NAMES = ("source", "key", "type")
MAX_TOPIC_BYTES = 65_535  # bytes of a topic
HINT = "A pattern is like plant/{key}/{type...}; the names are source, key and type."
ONE, REST = "+", "#"

_NAME = re.compile(r"\{(\w*)(\.\.\.)?\}")


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A pattern: its levels as in an MQTT topic filter, and the names of some of them."""

    text: str
    levels: tuple[str, ...]
    names: tuple[str | None, ...]

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """Parse a pattern. Raises SettingsError, which names the wrong level."""
        if not text or "\0" in text or len(text.encode()) > MAX_TOPIC_BYTES:
            raise SettingsError(f"{text[:80]!r} is not a topic pattern", HINT)
        if text.startswith("$share/"):
            raise SettingsError(f"topic pattern {text!r} names a group", "Set group in [mqtt] instead.")
        levels = text.split("/")
        read = [_level(level, number, len(levels), text) for number, level in enumerate(levels, 1)]
        names = [name for _, name in read if name is not None]
        for name in names:
            if names.count(name) > 1:
                raise SettingsError(f"topic pattern {text!r} has {{{name}}} twice", HINT)
        return cls(text, tuple(level for level, _ in read), tuple(name for _, name in read))

    @property
    def filter(self) -> str:
        """Return the topic filter to subscribe to."""
        return "/".join(self.levels)

    def match(self, topic: str) -> dict[str, str] | None:
        """Return the columns that a topic fills, by name; None if it does not match."""
        levels = topic.split("/")
        if not _covers(self.levels, levels):
            return None
        captured: dict[str, str] = {}
        for at, (level, name) in enumerate(zip(self.levels, self.names, strict=True)):
            if name is not None:
                if at >= len(levels):
                    return None
                captured[name] = "/".join(levels[at:]) if level == REST else levels[at]
        return captured


@dataclass(frozen=True, slots=True)
class Topics:
    """The patterns of a bridge; the first one that matches a topic counts."""

    patterns: tuple[TopicPattern, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Topics:
        """Parse the patterns. Raises SettingsError."""
        if not texts:
            raise SettingsError("there are no topics to subscribe to", "Set topics in [mqtt], or use --topic PATTERN.")
        return cls(tuple(TopicPattern.parse(text) for text in texts))

    def match(self, topic: str) -> dict[str, str] | None:
        """Return the columns that a topic fills, by name; None if no pattern matches."""
        return next((captured for pattern in self.patterns if (captured := pattern.match(topic)) is not None), None)

    def filters(self) -> list[str]:
        """Return the filters to subscribe to, without those that others cover: messages would arrive twice."""
        kept: list[TopicPattern] = []
        for pattern in self.patterns:
            if any(_covers(other.levels, pattern.levels) for other in kept):
                continue
            kept = [other for other in kept if not _covers(pattern.levels, other.levels)] + [pattern]
        return [pattern.filter for pattern in kept]


def _level(level: str, number: int, count: int, text: str) -> tuple[str, str | None]:
    """Return a level of a pattern in MQTT syntax, and its name."""
    named = _NAME.fullmatch(level)
    rest = level == REST or bool(named and named[2])
    where = f"topic pattern {text!r}, level {number}"
    if rest and number < count:
        raise SettingsError(f"{where}: {level} takes all remaining levels, but more follow", HINT)
    if level in {ONE, REST}:
        return level, None
    if named:
        if named[1] not in NAMES:
            raise SettingsError(f"{where}: there is no column {named[1]!r}", HINT)
        return REST if rest else ONE, named[1]
    if set(level) & set("{}+#"):
        raise SettingsError(f"{where}: {level!r} is neither a word nor a name", f"A name takes a whole level. {HINT}")
    return level, None


def _covers(levels: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether a filter matches a topic, or everything that another filter matches.

    `a/#` also matches `a`. Topics that begin with $ belong to the broker; a leading wildcard does not match them.
    """
    if others[0].startswith("$") and levels[0] in {ONE, REST}:
        return False
    for at, level in enumerate(levels):
        if level == REST:
            return True
        if at >= len(others) or others[at] == REST or (level != ONE and level != others[at]):
            return False
    return len(levels) == len(others)

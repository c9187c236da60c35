"""A finding of the doctor: how bad, what, and what to do; and every code that a finding can have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]

# What a finding is about is the heading it stands under; docs/doctor.md lists the codes.
CODES = {
    "machine": ("python", "packages", "extras", "java", "jars", "spark", "memory"),
    "settings": ("settings", "engine", "window", "max-clock-skew"),
    "depot": (
        "depot",
        "depot-columns",
        "depot-nulls",
        "depot-feed",
        "depot-reach",
        "depot-retention",
        "depot-changes",
        "depot-features",
    ),
    "ledger": (
        "ledger",
        "ledger-books",
        "ledger-files",
        "ledger-log",
        "ledger-live",
        "ledger-retention",
        "ledger-rules",
        "ledger-paused",
        "ledger-features",
    ),
    "storage": ("storage", "storage-access", "storage-space"),
    "clock": ("clock-commits", "clock-stamps", "clock-still", "clock-shared"),
    "doctor": ("check",),
}
ABOUT = {code: about for about, codes in CODES.items() for code in codes}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `todo` says what to do about a warning or an error."""

    level: Level
    code: str
    what: str
    todo: str = ""

    @property
    def about(self) -> str:
        """Return what it is about: machine, settings, depot, ledger, storage, clock."""
        return ABOUT[self.code]


def ok(code: str, what: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding("ok", code, what)


def warning(code: str, what: str, todo: str) -> Finding:
    """Return a finding that may do harm one day, or keeps something from working that may not be needed."""
    return Finding("warning", code, what, todo)


def error(code: str, what: str, todo: str) -> Finding:
    """Return a finding with which Windrow does not work as it promises."""
    return Finding("error", code, what, todo)

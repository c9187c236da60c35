"""A finding of the doctor: its level, its code, what was found and what to do; and the list of all codes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

Level = Literal["ok", "warning", "error"]

# The codes by heading of the report; docs/doctor.md lists them.
CODES = {
    "machine": ("packages", "java", "spark"),
    "settings": ("settings", "engine", "window", "max-clock-skew"),
    "depot": ("depot", "depot-columns", "depot-feed", "depot-readable", "depot-retention", "depot-changes"),
    "ledger": (
        "ledger", "ledger-books", "ledger-files", "ledger-log", "ledger-retention", "ledger-rules", "ledger-paused",
        "ledger-splits", "ledger-slivers", "ledger-sources", "ledger-delay",
    ),
    "storage": ("storage", "storage-access", "storage-files", "storage-space"),
    "clock": ("clock-commits", "clock-stamps", "clock-shared"),
    "doctor": ("check",),
}  # fmt: skip
ABOUT = {code: about for about, codes in CODES.items() for code in codes}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `hint` says what to do about a warning or an error, `sources` which sources it names.

    An error keeps Windrow from working as documented; a warning may cause harm later, or affects an optional function.
    """

    level: Level
    code: str
    message: str
    hint: str = ""
    sources: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """Return its subject: machine, settings, depot, ledger, storage, clock or doctor."""
        return ABOUT[self.code]


ok, warning, error = partial(Finding, "ok"), partial(Finding, "warning"), partial(Finding, "error")

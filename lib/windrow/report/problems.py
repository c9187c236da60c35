"""What is wrong, worst first: alarms, findings of the doctor and waiting messages, each with what to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from windrow.model.printable import pluralize
from windrow.model.warn import MIN_COUNT
from windrow.operate.doctor.finding import Finding
from windrow.reading.rejected_sources import RejectedSource
from windrow.reading.status import Status
from windrow.reading.status_text import lag_text
from windrow.reading.warnings import apart_text

Level = Literal["alarm", "error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("alarm", "error", "warning", "note")
MAX_NOTES = 3  # on sources with rejected messages
MAX_NAME = 150  # letters; a device may choose a name of any length
WRONG_CLOCK = "If the clock of its device is wrong, docs/howto/wrong-clocks.md says how to correct it."
OFF = ("too_old", "too_far_ahead")  # the reasons that point to a wrong clock


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong or worth knowing (`note`), what to do about it, and since when, if known."""

    level: Level
    code: str
    message: str
    hint: str = ""
    since: str | None = None


def problems_of(
    status: Status,
    findings: Sequence[Finding],
    alarms: Sequence[str] = (),
    rejected: Sequence[RejectedSource] = (),
    paused_at: str | None = None,
) -> list[Problem]:
    """Return the problems, worst first; `alarms` are the conditions that hold."""
    problems = [Problem("alarm", "alarm", alarm) for alarm in alarms]
    named = {name for finding in findings for name in finding.sources}
    problems += [_of_finding(finding, rejected) for finding in findings if finding.sources]
    problems += [_rejecting(row) for row in rejected[:MAX_NOTES] if row.source not in named]
    for finding in findings:
        if finding.level != "ok" and not finding.sources:
            since = paused_at if finding.code == "ledger-paused" else None
            problems.append(Problem(finding.level, finding.code, finding.message, finding.hint, since))
    if status.versions_waiting:
        since = min((depot.oldest_waiting_at for depot in status.depots if depot.oldest_waiting_at), default=None)
        problems.append(Problem("note", "lag", lag_text(status), "`windrow run` reads them.", since))
    return sorted(problems, key=lambda problem: LEVELS.index(problem.level))


def verdict(problems: Sequence[Problem]) -> tuple[Level | Literal["ok"], str]:
    """Return the worst level, and a headline."""
    counts = {level: sum(problem.level == level for problem in problems) for level in LEVELS}
    phrases = [pluralize(counts[level], level) for level in LEVELS[:3] if counts[level]]
    if phrases:
        return problems[0].level, ", ".join(phrases)
    known = f"Nothing is wrong; {pluralize(len(problems), 'thing')} to know"
    return ("note", known) if problems else ("ok", "Nothing is wrong")


def reason_text(row: RejectedSource) -> str:
    """Return the reason for rejections, and how far the source's clock is off if that is the reason."""
    off = row.reason in OFF and row.offset_us is not None
    return f"{row.reason} ({apart_text(row.offset_us or 0)})" if off else row.reason


def name_text(name: str | None) -> str:
    """Return the name of a source or key, cut if it is very long."""
    text = name or repr(name)
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}... ({len(text):,} characters)"


def _of_finding(finding: Finding, rejected: Sequence[RejectedSource]) -> Problem:
    """Return the problem for a finding about sources, and since when their clocks cause rejections."""
    named = [row.since for row in rejected if row.source in finding.sources and row.reason in OFF]
    since = min((since for since in named if since is not None), default=None)
    level: Level = "error" if finding.level == "error" else "warning"
    return Problem(level, finding.code, finding.message, finding.hint, since)


def _rejecting(row: RejectedSource) -> Problem:
    """Return the problem for a source with rejected messages about which the doctor does not warn."""
    share = f"{row.message_count:,} of {pluralize(row.read, 'message')}"
    message = f"{share} of {name_text(row.source)} were rejected: {reason_text(row)}"
    clock = f" {WRONG_CLOCK}" if row.reason in OFF else ""
    which = "The worst case: " if row.missed_by_us else ""
    hint = f"{which}{row.explanation.reason}; {row.explanation.hint}.{clock}"
    level: Level = "warning" if row.message_count >= MIN_COUNT and 2 * row.message_count > row.read else "note"
    return Problem(level, f"rejected-{row.reason}", message, hint, row.since)

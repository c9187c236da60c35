"""The report of `verify`: the books of each ledger version, and every difference with examples."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from windrow.reading.values import records

EXAMPLES = 20
NUMBERED = re.compile(r"(\d+) (.+)")


@dataclass(frozen=True, slots=True)
class Difference:
    """Something wrong: the check, what it expected, what it found, and up to 20 examples.

    The checks leave out `ledger_version`; `at_version` fills it in.
    """

    check: str
    expected: str
    found: str
    ledger_version: int = -1
    examples: tuple[dict[str, Any], ...] = ()


Found: TypeAlias = Difference | str  # a text says what could not be checked


@dataclass(frozen=True, slots=True)
class Books:
    """The books of one ledger version: what it has read, where the messages are, and how they compare with the depot.

    `rejected` counts all rejections, `rejected_by_format` those of the format, which are not messages. `matched` counts
    messages that the ledger has as often as the depot, `lost` those that it lacks, `duplicated` those that it has too
    often, `unexpected` those that the depot does not have, and `unchecked` those of depot versions that can no longer
    be read. `redecided` messages were decided again from the log and the rules. Of the streams with batches, the
    windows of `derived_stream_count` were derived again.
    """

    ledger_version: int
    depot_version: int
    microbatch_count: int
    messages_read: int
    in_open_batches: int
    in_closed_batches: int
    rejected: int
    rejected_by_format: int
    matched: int
    lost: int
    duplicated: int
    unexpected: int
    unchecked: int
    redecided: int
    stream_count: int
    derived_stream_count: int


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far a verification has come: the ledger version, -1 while the depot is read, and how much of it is done.

    `stream_count` streams have batches, of which `proven_stream_count` are in finished parts. The windows of
    `message_count` messages are derived again, `derived_message_count` so far.
    """

    ledger_version: int = -1
    parts_done: int = 0
    part_count: int = 0
    proven_stream_count: int = 0
    stream_count: int = 0
    derived_message_count: int = 0
    message_count: int = 0
    difference_count: int = 0


@dataclass(frozen=True, slots=True)
class VerifiedRange:
    """What was verified: a ledger up to a version and its microbatch, and its depot up to a version.

    Ids and fingerprints distinguish both from others with the same numbers: the token and the commit of the ledger
    version, a digest of the names and sizes of its files, and the commit of the depot version.
    """

    ledger_id: str
    ledger_version: int
    ledger_fingerprint: str
    ledger_files: str
    token: str
    microbatch: int
    depot_id: str
    depot_version: int
    depot_fingerprint: str


@dataclass(frozen=True, slots=True)
class Since:
    """What a verification relies on: a ledger version, verified at `verified_at`, None if there is no record of that.

    `open_batch_count` and `open_message_count` say how much was open then.
    """

    ledger_version: int
    microbatch: int
    depot_version: int
    verified_at: str | None
    open_batch_count: int
    open_message_count: int


class ReportStatus:
    """The verdict of a report, from its differences, and from its findings on what could not be checked."""

    __slots__ = ()
    differences: tuple[Difference, ...]
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Tell whether there is no difference."""
        return not self.differences

    @property
    def complete(self) -> bool:
        """Tell whether everything could be checked."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"ok": self.ok, "complete": self.complete, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Report(ReportStatus):
    """The result of `verify`; `findings` says what could not be checked. A finding is not a difference.

    `verified` is what the report covers, at the last version. The report relies on `since`; `since_refused` is the
    reason why it relies on nothing.
    """

    depot: str
    ledger: str
    since: Since | None
    since_refused: str | None
    verified: VerifiedRange | None
    books: tuple[Books, ...]
    differences: tuple[Difference, ...]
    findings: tuple[str, ...]


def at_version(version: int, findings: Iterable[Found]) -> list[Found]:
    """Return differences with the ledger version in which they were found."""
    return [finding if isinstance(finding, str) else replace(finding, ledger_version=version) for finding in findings]


def merge_findings(findings: Iterable[Found]) -> list[Found]:
    """Merge the findings of parts: equal differences get the sum of their rows, and the first examples.

    The text of what was found must begin with a number of rows.
    """
    whole: dict[Any, Found] = {}
    for finding in findings:
        match = NUMBERED.fullmatch(finding.found) if isinstance(finding, Difference) else None
        if not isinstance(finding, Difference) or match is None:
            whole[str(finding)] = finding
            continue
        before = whole.get(key := (finding.check, finding.expected, match[2]))
        if not isinstance(before, Difference):
            whole[key] = finding
            continue
        count = int(before.found.split(" ")[0]) + int(match[1])
        examples = (*before.examples, *finding.examples)[:EXAMPLES]
        whole[key] = replace(finding, found=f"{count} {match[2]}", examples=examples)
    return list(whole.values())


def split_findings(findings: Iterable[Found]) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """Split findings into differences and texts on what could not be checked."""
    every = list(findings)
    differences = tuple(entry for entry in every if isinstance(entry, Difference))
    return differences, tuple(entry for entry in every if isinstance(entry, str))


def difference_in_rows(check: str, expected: str, rows: pa.Table, noun: str) -> list[Difference]:
    """Return the difference for rows that fail a check, with the first rows as examples; none without rows."""
    if not rows.num_rows:
        return []
    examples = tuple(records(rows.slice(0, EXAMPLES).combine_chunks()))
    return [Difference(check, expected, f"{rows.num_rows} {noun}", examples=examples)]


def difference_in_numbers(check: str, expected: int, actual: int, what: str) -> list[Difference]:
    """Return the difference between two numbers of `what`; none when they are equal."""
    return [] if expected == actual else [Difference(check, f"{expected} {what}", f"{actual} {what}")]

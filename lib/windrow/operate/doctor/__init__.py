"""`windrow doctor`: check the machine, the settings and the tables, without changing anything.

A check is a small function that yields findings. Checks of a table that cannot be opened are skipped. A check that
fails is a finding too, so that one defect does not hide the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from deltalake import DeltaTable

from windrow.batching.rules import CALENDAR
from windrow.engine import choose
from windrow.errors import WindrowError, first_line
from windrow.model.durations import UNITS, format_duration
from windrow.operate.doctor import depot, ledger
from windrow.operate.doctor.finding import ABOUT, CODES, Finding, error, ok, warning
from windrow.operate.doctor.machine import check_machine
from windrow.operate.doctor.opened import OpenDepot, OpenLedger, batcher_depot, batcher_ledger, explain_unopened
from windrow.operate.doctor.storage import check_commits, check_data_files, check_stamps, check_storage
from windrow.settings.settings import Settings

__all__ = ["CODES", "ExaminedTable", "Finding", "examine", "examine_tables", "safely"]

LONG_SKEW = UNITS["h"]
Checks: TypeAlias = tuple[Callable[..., Iterable[Finding]], ...]

OF_DEPOT: Checks = (
    depot.check_columns, depot.check_feed, depot.check_readable, depot.check_retention, depot.check_changes,
    check_stamps,
)  # fmt: skip
OF_LEDGER: Checks = (
    ledger.check_books, ledger.check_files, ledger.check_retention, ledger.check_rules, ledger.check_paused,
    ledger.check_warnings,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExaminedTable:
    """A depot or a ledger (`role`), and functions that open and check it; `name` tells one of several depots."""

    role: str
    location: str
    open: Callable[[], tuple[OpenDepot | OpenLedger, Checks]]
    name: str = ""


def examine(read: Callable[[], Settings], now: int, network: bool = False) -> list[Finding]:
    """Check the machine, the settings that `read` returns, and their tables, at wall time `now` (microseconds).

    With `network`, Spark is started and may download its jars. Otherwise only remote tables use the network.
    """
    settings, findings = load(read)
    if settings is None:
        return examine_tables(choose("auto"), now, network, findings, [])
    engine = choose(settings.engine)
    tables = [
        ExaminedTable("depot", settings.depot, lambda: (batcher_depot(settings, engine, now), OF_DEPOT)),
        ExaminedTable("ledger", settings.ledger, lambda: (batcher_ledger(settings), OF_LEDGER)),
    ]
    return examine_tables(engine, now, network, [*findings, *safely(check_settings, settings, engine)], tables)


def load(read: Callable[[], Settings]) -> tuple[Settings | None, list[Finding]]:
    """Read the settings; return None and a finding with the reason if they cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `check_settings` turns them into findings
            settings = read()
    except WindrowError as refused:
        return None, [error("settings", f"{refused.code}: {refused.message}", refused.hint)]
    return settings, [ok("settings", f"depot {settings.depot}, ledger {settings.ledger}")]


def check_settings(settings: Settings, engine: str) -> Iterator[Finding]:
    """Report the engine, and check the rules and `max_clock_skew`."""
    why = "" if settings.engine != "auto" else f" (auto: Spark {'can' if engine == 'spark' else 'cannot'} run here)"
    yield ok("engine", f"the {engine} engine{why}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings.rules.build()
    for short in caught:
        yield warning("window", str(short.message), f"Set a longer window, or {CALENDAR}.")
    if settings.max_clock_skew > LONG_SKEW:
        skew = format_duration(settings.max_clock_skew)
        yield warning(
            "max-clock-skew",
            f"max_clock_skew is {skew}: one stamp that far ahead makes all messages of its source late for that long",
            'Keep it as short as the clocks allow, such as "5m".',
        )


def examine_tables(
    engine: str, now: int, network: bool, findings: Iterable[Finding], tables: Iterable[ExaminedTable]
) -> list[Finding]:
    """Check the machine and tables; `findings` are about the settings or a topology's declarations."""
    findings = [*safely(check_machine, engine, network), *findings]
    for table in tables:
        prefix = f"{table.name}: " if table.name else ""
        findings += [replace(finding, message=prefix + finding.message) for finding in _of_table(table, now)]
    return sorted(findings, key=lambda finding: list(ABOUT).index(finding.code))


def _of_table(table: ExaminedTable, now: int) -> list[Finding]:
    """Check a table's storage, and the table itself if it can be opened."""
    role, findings = table.role, safely(check_storage, table.role, table.location)
    try:
        opened, checks = table.open()
    except WindrowError as refused:
        return [*findings, explain_unopened(role, table.location, refused)]
    findings.append(ok(role, f"{table.location}, version {opened.version}"))
    for check in checks:
        findings += safely(check, opened)
    if isinstance(opened.table, DeltaTable):
        findings += safely(check_data_files, role, opened.table)
    return [*findings, *safely(check_commits, role, opened.table, opened.version, now)]


def safely(check: Callable[..., Iterable[Finding]], *arguments: object) -> list[Finding]:
    """Return the findings of a check, or a finding that the check failed."""
    try:
        return list(check(*arguments))
    except Exception as failed:  # noqa: BLE001 - the other checks run whatever the error is
        message = f"the check of {check.__name__.removeprefix('check_')} failed: {first_line(failed)}"
        known = failed.hint if isinstance(failed, WindrowError) else "This is unexpected: please report it."
        return [error("check", message, f"{known} The other checks ran.")]

"""`windrow doctor`: check the machine, the settings and the tables, without changing anything.

A check is a small function that yields findings. Checks of a table that cannot be opened are skipped. A check that
fails is a finding too, so that one defect does not hide the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from windrow.engine import choose
from windrow.errors import WindrowError, first_line
from windrow.operate.doctor import clocks, depot, ledger
from windrow.operate.doctor.configured import check_settings, load
from windrow.operate.doctor.features import check_features
from windrow.operate.doctor.finding import ABOUT, CODES, Finding, error
from windrow.operate.doctor.machine import check_machine
from windrow.operate.doctor.opened import open_tables
from windrow.operate.doctor.storage import check_data_files, check_storage
from windrow.settings.settings import Settings

__all__ = ["CODES", "Finding", "examine", "in_order", "safely"]

OF_DEPOT = (
    depot.check_columns,
    depot.check_nulls,
    depot.check_feed,
    depot.check_retention,
    depot.check_changes,
    clocks.check_stamps,
)
OF_LEDGER = (
    ledger.check_books,
    ledger.check_files,
    ledger.check_log,
    ledger.check_live,
    ledger.check_retention,
    ledger.check_rules,
    ledger.check_paused,
    ledger.check_warnings,
    clocks.check_still,
)


def examine(read: Callable[[], Settings], now: int, network: bool = False) -> list[Finding]:
    """Check the machine, the settings that `read` returns, and their tables, at wall time `now` (microseconds).

    With `network`, Spark is started and may download its jars. Otherwise only remote tables use the network.
    """
    settings, findings = load(read)
    if settings is None:
        return in_order([*safely(check_machine, choose("auto"), network), *findings])
    engine = choose(settings.engine)
    findings += [*safely(check_machine, engine, network), *safely(check_settings, settings, engine)]
    findings += safely(check_storage, settings)
    log, book, more = open_tables(settings, engine, now)
    findings += more
    for check in OF_DEPOT if log else ():
        findings += safely(check, log)
    for examined in OF_LEDGER if book else ():
        findings += safely(examined, book)
    for role, table in (("depot", log and log.table), ("ledger", book and book.book.table)):
        if table:
            findings += [*safely(check_features, role, table, engine), *safely(clocks.check_commits, role, table, now)]
            findings += safely(check_data_files, role, table)
    return in_order(findings)


def safely(check: Callable[..., Iterable[Finding]], *given: object) -> list[Finding]:
    """Return the findings of a check, or a finding that the check failed."""
    try:
        return list(check(*given))
    except Exception as failed:  # noqa: BLE001 - the other checks run whatever the error is
        what = f"the check of {check.__name__.removeprefix('check_')} failed: {first_line(failed)}"
        known = failed.hint if isinstance(failed, WindrowError) else "This is unexpected: please report it."
        return [error("check", what, f"{known} The other checks ran.")]


def in_order(findings: list[Finding]) -> list[Finding]:
    """Sort findings in the order of `CODES`."""
    return sorted(findings, key=lambda finding: list(ABOUT).index(finding.code))

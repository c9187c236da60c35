"""The command `windrow doctor`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from windrow.cli.shared_options import CommandContext, TopologyArgument, command, platform_reads, print_line
from windrow.cli.terminal import stderr_console, stdout_console
from windrow.errors import TableMissingError, WindrowError
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from windrow.operate.doctor import Finding
    from windrow.settings.settings import Settings

COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@command("config depot ledger engine", example="windrow doctor --json   or   windrow doctor words:topology")
def doctor(
    call: CommandContext,
    topology: TopologyArgument = None,
    start_spark: Annotated[bool, "Start Spark too, which downloads Delta's jars if they are missing."] = False,
) -> int:
    """Find what is wrong with the machine, settings and tables.

    Each finding says what to do. Exit status 1 on any error. Doctor changes nothing. Without --start-spark it starts no
    Spark and uses the network only to read the tables. Where a platform provides Spark, Spark reads tables by name. For
    a topology it examines each depot and the table of states.
    """
    with stderr_console.status("examining"):
        findings = _findings(call, topology, start_spark)
    errors, warnings = (sum(finding.level == level for finding in findings) for level in ("error", "warning"))
    rows = [{"about": finding.about} | asdict(finding) for finding in findings]
    document = {"ok": not errors, "error_count": errors, "warning_count": warnings, "findings": rows}
    call.answer(document, tell=lambda: _print(findings, errors, warnings))
    return 1 if errors else 0


def _findings(call: CommandContext, topology: str | None, start_spark: bool) -> list[Finding]:
    now = WallClock().now()
    if topology is None:
        from windrow.operate.doctor import examine

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # findings say the same in more detail
            with _reading(call):
                return examine(lambda: _settings(call), now, start_spark)
    from windrow.topology.doctor import examine_topology

    return examine_topology(*call.topology(topology), now, start_spark)


def _reading(call: CommandContext) -> AbstractContextManager[object]:
    """Let Spark read the tables in the block where a platform's catalog has them."""
    try:
        settings = call.settings()
    except WindrowError:  # this becomes a finding
        return nullcontext()
    return call.readable_settings("headers") if platform_reads(settings) else nullcontext()


def _settings(call: CommandContext) -> Settings:
    """Return the settings, with catalog tables by their recorded paths, or else by their names."""
    settings = call.settings()
    if platform_reads(settings):
        return settings
    try:
        return call.path_settings()
    except TableMissingError:
        return settings


def _print(findings: Sequence[Finding], errors: int, warnings: int) -> None:
    from rich.table import Table

    for about, group in groupby(findings, lambda finding: finding.about):
        table = Table(
            box=None, show_header=False, title=about, title_justify="left", title_style="bold", pad_edge=False
        )
        table.add_column(min_width=len("warning"), no_wrap=True)
        table.add_column(min_width=len("ledger-retention"), no_wrap=True)
        table.add_column(overflow="fold")
        for finding in group:
            colour = COLOURS[finding.level]
            hint = f"\n[dim]{escape(finding.hint)}[/dim]" if finding.hint else ""
            table.add_row(f"[{colour}]{finding.level}[/{colour}]", finding.code, escape(finding.message) + hint)
        stdout_console.print(table)
    wrong = f"{pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}"
    print_line(wrong if errors + warnings else "nothing is wrong")

"""The command `windrow maintain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from windrow.cli.shared_options import CommandContext, IfExists, TopologyArgument, command, print_markup, refuse
from windrow.cli.terminal import stderr_console
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from windrow.model.results import MaintenanceResult, Role
    from windrow.runtime.maintenance import Progress


@command("config depot ledger engine", example="windrow maintain --dry-run   or   windrow maintain words:topology")
def maintain(
    call: CommandContext,
    topology: TopologyArgument = None,
    table: Annotated[str | None, "Maintain only this table: ledger or depot."] = None,
    dry_run: Annotated[bool, "Show what would be done, and change nothing."] = False,
    if_exists: IfExists = False,
) -> None:
    """Drop obsolete versions, compact small files, remove old files.

    It removes files older than `retention` that the table no longer uses, and never deletes a row. It can run at the
    same time as a batcher. Files of the depot that the ledger has yet to read stay, however old they are. For a
    topology it maintains the table of states and each depot.
    """
    from windrow.model.results import ROLES

    role = next((role for role in ROLES if role == table), None)
    refuse(
        (table is not None and role is None, f"--table {table!r} is neither ledger nor depot", "Use ledger or depot.")
    )
    with call.waiting(if_exists, dry_run=dry_run, tables=[]):
        with stderr_console.status("opening") as status:
            results = _maintain(call, topology, role, dry_run, lambda table, step: status.update(f"{table}: {step}"))
        call.answer({"dry_run": dry_run, "tables": results}, tell=lambda: _print(results, dry_run))


def _maintain(
    call: CommandContext, topology: str | None, role: Role | None, dry_run: bool, progress: Progress
) -> list[MaintenanceResult]:
    now = WallClock().now()
    if topology is None:
        from windrow.runtime.maintenance import maintain
        from windrow.runtime.opening import tables_of

        source, ledger = tables_of(call.sparkless_settings())
        return maintain([source], ledger, now, role, dry_run, progress)
    from windrow.topology.running import maintain_topology

    return maintain_topology(*call.topology(topology), now, role, dry_run, progress)


def _print(results: list[MaintenanceResult], dry_run: bool) -> None:
    for table in results:
        print_markup(f"[bold]{table.table}[/bold] {escape(table.location)}: {escape(_describe(table, dry_run))}.")


def _describe(table: MaintenanceResult, dry_run: bool) -> str:
    if table.skip_reason is not None:
        return f"left alone, {table.skip_reason}"
    would = "would be " if dry_run else ""
    parts = []
    if table.retention_changed:
        parts.append(f"retention {would}set to {table.retention}")
    if table.folded_versions:
        parts.append(f"{pluralize(table.folded_versions, 'obsolete version')} {would}dropped")
    if table.files_removed:
        into = "" if table.files_added is None else f" into {table.files_added:,}"
        parts.append(f"{pluralize(table.files_removed, 'small file')} {would}compacted{into}")
    if table.files_deleted:
        parts.append(f"{pluralize(table.files_deleted, 'old file')} {would}removed")
    return ", ".join(parts) or "nothing to do"

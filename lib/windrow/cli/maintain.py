"""The commands `windrow maintain` and `windrow recover`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from windrow.cli.shared_options import CommandContext, IfExists, TopologyArgument, command, print_markup, refuse
from windrow.cli.terminal import stderr_console
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from windrow.model.results import MaintenanceResult, Role
    from windrow.runtime.maintenance import Progress
    from windrow.runtime.recover import RecoveryResult


@command("config depot ledger engine", example="windrow maintain --dry-run   or   windrow maintain words:topology")
def maintain(
    call: CommandContext,
    topology: TopologyArgument = None,
    table: Annotated[str | None, "Maintain only this table: ledger or depot."] = None,
    dry_run: Annotated[bool, "Say what would be done, and change nothing."] = False,
    if_exists: IfExists = False,
) -> None:
    """Drop obsolete versions, compact small files, remove old files.

    It removes files older than `retention` that the table no longer uses, and never deletes a row. It can run at the
    same time as a batcher. Files of the depot that the ledger has yet to read stay, however old they are. For a
    topology it maintains the table of states and each depot.
    """
    from windrow.model.results import ROLES

    role = next((role for role in ROLES if role == table), None)
    refuse((table is not None and role is None, f"--table {table!r} is no table", "Say ledger or depot."))
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
        parts.append(f"{pluralize(table.folded_versions, 'version')} that did not count {would}dropped")
    if table.files_removed:
        into = "" if table.files_added is None else f" into {table.files_added:,}"
        parts.append(f"{pluralize(table.files_removed, 'small file')} {would}compacted{into}")
    if table.files_deleted:
        parts.append(f"{pluralize(table.files_deleted, 'old file')} {would}removed")
    return ", ".join(parts) or "nothing to do"


@command("config depot ledger", example="windrow recover --dry-run")
def recover(
    call: CommandContext,
    dry_run: Annotated[bool, "Say what would be done, and change nothing."] = False,
) -> None:
    """Take the ledger back to its last usable version.

    That is the last version whose files are whole and whose messages the depot still has. Recover sets later versions
    aside and deletes none; the next run makes their batches again. Stop every run first: recover does not check that.
    """
    from windrow.runtime.recover import recover as recovered

    chosen = call.sparkless_settings()
    with stderr_console.status("looking at the ledger") as status:
        recovery = recovered(chosen, dry_run, lambda version: status.update(f"looking at version {version}"))
    call.answer({"dry_run": dry_run, **asdict(recovery)}, _describe_recovery(recovery, dry_run))


def _describe_recovery(recovery: RecoveryResult, dry_run: bool) -> str:
    if recovery.first is None or recovery.last is None:
        return f"Nothing to do: version {recovery.version} of the ledger {recovery.ledger}, its last one, can be used."
    back = ("would begin" if dry_run else "begins") + " again from the start"
    if recovery.version is not None:
        back = ("would go" if dry_run else "goes") + f" back to version {recovery.version}"
    several = recovery.first != recovery.last
    versions = f"versions {recovery.first} to {recovery.last}" if several else f"version {recovery.first}"
    aside = f"{versions} would be set aside" if dry_run else f"{versions} set aside in {recovery.directory}"
    text = f"The ledger {recovery.ledger} {back}: {aside}."
    if recovery.unknown:
        text += f" How many batches {pluralize(recovery.unknown, 'version')} closed cannot be read."
    elif not recovery.closed_batches_lost:
        return f"{text} They closed no batch."
    return (
        f"{text} They closed at least {pluralize(recovery.closed_batches_lost, 'batch')}, which the next "
        "`windrow run` makes again, except where a tick or flush decided. Readers that have seen them must start over: "
        "see docs/downstream.md."
    )

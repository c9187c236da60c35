"""The command `windrow recover`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from windrow.cli.shared_options import CommandContext, command
from windrow.cli.terminal import stderr_console
from windrow.model.printable import pluralize

if TYPE_CHECKING:
    from windrow.runtime.recover import RecoveryResult


@command("config depot ledger", example="windrow recover --dry-run")
def recover(
    call: CommandContext,
    dry_run: Annotated[bool, "Show what would be done, and change nothing."] = False,
) -> None:
    """Take the ledger back to its last usable version.

    That is the last version whose files are intact and whose messages the depot still has. Recover sets later versions
    aside and deletes none; the next run recreates their batches. Stop every run first: recover does not check that.
    """
    from windrow.runtime.recover import recover as recovered

    chosen = call.sparkless_settings()
    with stderr_console.status("inspecting the ledger") as status:
        recovery = recovered(chosen, dry_run, lambda version: status.update(f"inspecting version {version}"))
    call.answer({"dry_run": dry_run, **asdict(recovery)}, _describe(recovery, dry_run))


def _describe(recovery: RecoveryResult, dry_run: bool) -> str:
    if recovery.first is None or recovery.last is None:
        return f"Nothing to do: version {recovery.version} of the ledger {recovery.ledger}, the latest, is usable."
    back = ("would begin" if dry_run else "begins") + " again from the start"
    if recovery.version is not None:
        back = ("would go" if dry_run else "goes") + f" back to version {recovery.version}"
    several = recovery.first != recovery.last
    versions = f"versions {recovery.first} to {recovery.last}" if several else f"version {recovery.first}"
    aside = f"{versions} would be set aside" if dry_run else f"{versions} set aside in {recovery.directory}"
    text = f"The ledger {recovery.ledger} {back}: {aside}."
    if recovery.unknown:
        text += f" It is unknown how many batches {pluralize(recovery.unknown, 'version')} closed."
    elif not recovery.closed_batches_lost:
        return f"{text} They closed no batch."
    return (
        f"{text} They closed at least {pluralize(recovery.closed_batches_lost, 'batch')}, which the next "
        "`windrow run` recreates, except where a tick or flush decided. Readers that have seen them must start over: "
        "see docs/downstream.md."
    )

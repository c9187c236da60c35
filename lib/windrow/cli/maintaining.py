"""The commands that look after the tables' files: maintain and recover."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from windrow.cli import options
from windrow.cli.options import Config, Debug, Depot, Engine, Json, Ledger, aside, count, people
from windrow.errors import SettingsError

if TYPE_CHECKING:
    from windrow.model.results import Maintained
    from windrow.runtime.recover import Recovered


def add_to(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command(epilog="Example: windrow maintain   or   windrow maintain --only ledger --dry-run")(maintain)
    app.command(epilog="Example: windrow recover --dry-run")(recover)


def maintain(
    only: Annotated[str | None, typer.Option("--only", help="Look after this one alone: ledger or depot.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make large files of small ones, and remove what is older than `keep`. No row is ever deleted.

    It may run beside a batcher. What a ledger has yet to read of its depot stays, however old it is.
    """
    from windrow.engine import open_engine
    from windrow.model.results import ROLES
    from windrow.runtime.maintenance import maintain as look_after
    from windrow.runtime.wall_clock import WallClock

    role = next((role for role in ROLES if role == only), None)
    if only is not None and role is None:
        raise SettingsError(f"--only {only!r} is no table", "Say ledger or depot.")
    chosen = options.switching(config, depot=depot, ledger=ledger, engine=engine)
    with aside.status("opening") as status:
        done = look_after(
            open_engine(chosen),
            chosen,
            WallClock().now(),
            role,
            dry_run,
            lambda table, step: status.update(f"{table}: {step}"),
        )
    if json:
        options.print_json({"dry_run": dry_run, "tables": [asdict(table) for table in done]})
        return
    for table in done:
        people.print(
            f"[bold]{table.table}[/bold] {escape(table.location)}: {escape(_said(table, dry_run))}.", soft_wrap=True
        )


def recover(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Take the ledger back to its last version that can be used: its files are whole, and the depot has what it read.

    Later versions are set aside, not deleted; the next run makes their batches again. Stop the run first: nothing
    checks that.
    """
    from windrow.runtime.recover import recover as recovered

    chosen = options.switching(config, depot=depot, ledger=ledger)
    with aside.status("looking at the ledger") as status:
        done = recovered(chosen, dry_run, lambda version: status.update(f"looking at version {version}"))
    if json:
        options.print_json({"dry_run": dry_run, **asdict(done)})
        return
    people.print(escape(_told(done, dry_run)), soft_wrap=True)


def _told(done: Recovered, dry_run: bool) -> str:
    """Return in words what became of the ledger, or would."""
    if done.first is None or done.last is None:
        return f"Nothing to do: version {done.version} of the ledger {done.ledger}, its last one, can be used."
    back = ("would begin" if dry_run else "begins") + " anew"
    if done.version is not None:
        back = ("would go" if dry_run else "goes") + f" back to version {done.version}"
    versions = f"version {done.first}" if done.first == done.last else f"versions {done.first} to {done.last}"
    aside = f"{versions} would be set aside" if dry_run else f"{versions} set aside in {done.directory}"
    said = f"The ledger {done.ledger} {back}: {aside}."
    if not done.closed:
        return f"{said} They closed no batch."
    return (
        f"{said} They closed at least {count(done.closed, 'batch')}, which the next `windrow run` makes again, except "
        "where a tick or flush decided. Readers that have seen them must start over: see docs/downstream.md."
    )


def _said(table: Maintained, dry_run: bool) -> str:
    """Return in words what was done to a table, or would be."""
    if table.left_alone is not None:
        return f"left alone, {table.left_alone}"
    would = "would be " if dry_run else ""
    parts = []
    if table.keep_changed:
        parts.append(f"retention {would}set to {table.keep}")
    if table.compacted_files:
        into = "" if table.compacted_into is None else f" into {table.compacted_into:,}"
        parts.append(f"{count(table.compacted_files, 'small file')} {would}compacted{into}")
    if table.vacuumed_files:
        parts.append(f"{count(table.vacuumed_files, 'old file')} {would}removed")
    return ", ".join(parts) or "nothing to do"

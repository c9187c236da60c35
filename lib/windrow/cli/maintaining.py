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
    from windrow.maintain import Maintained
    from windrow.recover import Recovered


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
    from windrow.maintain import ROLES
    from windrow.maintain import maintain as look_after
    from windrow.wall import WallClock

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
    """Go back to the last version of the ledger that can be used: one whose files are whole and whose depot is there.

    What came after is set aside, not deleted, and the next run makes its batches of the depot again. End the run first.
    """
    from windrow.recover import recover as recovered

    chosen = options.switching(config, depot=depot, ledger=ledger)
    with aside.status("looking at the ledger") as status:
        done = recovered(chosen, dry_run, lambda version: status.update(f"looking at version {version}"))
    if json:
        options.print_json({"dry_run": dry_run, **asdict(done)})
        return
    people.print(escape(_told(done, dry_run)), soft_wrap=True)


def _told(done: Recovered, dry_run: bool) -> str:
    """Return in words what became of the ledger, or would."""
    if done.first is None:
        return f"Nothing to do: version {done.version} of the ledger {done.ledger}, its last one, can be used."
    goes_on = "begins anew" if done.version is None else f"goes back to version {done.version}"
    would = "would be" if dry_run else "are"
    where = "set aside" if done.directory is None else f"in {done.directory}"
    versions = f"The ledger {done.ledger} {goes_on}; versions {done.first} to {done.last} {would} {where}."
    if not done.closed:
        return f"{versions} No batch was closed in them."
    return (
        f"{versions} They closed {count(done.closed, 'batch')}. The next `windrow run` makes the same batches again, "
        "except where a tick or flush decided. Whoever read them downstream reads afresh: see docs/downstream.md."
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

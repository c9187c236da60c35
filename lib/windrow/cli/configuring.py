"""The command that explains the settings: settings."""

from __future__ import annotations

from dataclasses import asdict

import typer

from windrow.cli import options
from windrow.cli.options import Config, Debug, Depot, Engine, Json, Ledger, people


def add_to(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command(epilog="Example: windrow settings --config windrow.toml")(settings)


def settings(
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show every setting as it holds, and where it comes from: a flag, the environment, the file, the default."""
    from rich import box
    from rich.table import Table

    from windrow.settings.origins import effective

    flags = {name: value for name, value in (("depot", depot), ("ledger", ledger), ("engine", engine)) if value}
    found = effective(config, **flags)
    if json:
        options.print_json([asdict(one) for one in found])
        return
    table = Table("setting", "value", "from", box=box.SIMPLE_HEAD)
    for one in found:
        style = "dim" if one.origin == "default" else None
        table.add_row(one.name, one.value, one.origin, style=style)
    people.print(table)

"""The command `windrow settings`."""

from __future__ import annotations

from dataclasses import asdict

from windrow.cli import options
from windrow.cli.options import Call, command, people


@command("config depot ledger engine", example="windrow settings --config windrow.toml")
def settings(call: Call) -> None:
    """Show every setting, and where its value comes from.

    That is a flag, the environment, the file or the default.
    """
    from rich import box
    from rich.table import Table

    from windrow.settings.origins import effective

    found = effective(call.config, **call.flags)
    if call.json:
        options.print_json([asdict(one) for one in found])
        return
    table = Table("setting", "value", "from", box=box.SIMPLE_HEAD)
    for one in found:
        style = "dim" if one.origin == "default" else None
        table.add_row(one.name, one.value, one.origin, style=style)
    people.print(table)

"""The command `windrow settings`."""

from __future__ import annotations

from windrow.cli.shared_options import Call, command, grid
from windrow.cli.terminal import people


@command("config depot ledger engine", example="windrow settings --config windrow.toml")
def settings(call: Call) -> None:
    """Show every setting, and where its value comes from.

    That is a flag, the environment, the file or the default.
    """
    from windrow.settings.template import effective

    found = effective(call.config, **call.flags)
    table = grid(("setting", "value", "from"), ())
    for one in found:
        table.add_row(one.name, one.value, one.origin, style="dim" if one.origin == "default" else None)
    call.answer(found, tell=lambda: people.print(table))

"""The command `windrow flush`."""

from __future__ import annotations

from windrow.cli.running import run_and_print
from windrow.cli.shared_options import Call, command


@command("config depot ledger engine log_format log_level", example="windrow flush --json")
def flush(call: Call) -> None:
    """Close everything that is open, each source at its clock.

    Messages from before that clock are too old afterwards.
    """
    run_and_print(call, call.engine_settings(), lambda runner: runner.flush())

"""Options of a running topology: rows of the state `option`, read at each prime and recorded in the history."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import string_scalar
from windrow.errors import SettingsError
from windrow.ledger.result import MicrobatchCounts, MicrobatchResult
from windrow.model import tables
from windrow.model.durations import microseconds
from windrow.runtime.algorithm import Options
from windrow.runtime.ledger_state import LedgerState

UNSET = "default"


def _whole(value: str, name: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise SettingsError(f"{name} = {value!r} is not a number", "Use a whole number of at least 1, or default.")
    return int(value)


READ: dict[str, Callable[[str, str], int]] = {
    "max_messages": _whole,
    "trigger_interval": microseconds,
    "idle_sleep": microseconds,
    "phase_timeout": microseconds,
}


def options_of(primed: LedgerState) -> Options:
    """Return the options in force."""
    return Options(**{name: READ[name](value, name) for name, value in set_options(primed).items()})


def recorded_options(primed: LedgerState) -> str | None:
    """Return the options as the history records them (JSON), None if none is set."""
    options = set_options(primed)
    return json.dumps(options, sort_keys=True) if options else None


def set_options(primed: LedgerState) -> dict[str, str]:
    """Return the options that are set, as they were written."""
    rows = primed.fence.rows
    kept = rows.filter(pc.equal(rows["state"], string_scalar("option")))
    return dict(zip(kept["option"].to_pylist(), kept["option_value"].to_pylist(), strict=True))


def option_row(primed: LedgerState, name: str, value: str) -> MicrobatchResult:
    """Return the row that sets an option, or unsets it (`default`). Raises SettingsError."""
    if name not in READ:
        raise SettingsError(f"there is no option {name!r}", f"The options are {', '.join(READ)}.")
    if value != UNSET:
        READ[name](value, name)
    known = name in set_options(primed)
    columns: dict[str, Any] = {
        "id": tables.identifier("option", pa.array([name])),
        "state": "option",
        tables.DELETED: value == UNSET or None,
        "option": name,
        "option_value": value,
    }
    row = tables.rows(primed.progress.schema, columns, 1).append_column("known", pa.array([known]))
    rows = row if known or value != UNSET else row.slice(0, 0)
    return MicrobatchResult(rows, MicrobatchCounts.of(rows), history={"options_used": json.dumps({name: value})})

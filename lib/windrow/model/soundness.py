"""Whether live rows are such as Windrow writes: a ledger that was damaged from outside is refused, not guessed at."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import TableRefused

DAMAGED = "It was damaged from outside. RESTORE it to an earlier version, or replay the depot into a new ledger."
BATCH = ("source", "key", "part", "window_start", "window_end", "message_count", "messages")  # never NULL


def require_sound(rows: pa.Table, parts: Iterable[tuple[pa.Table, tuple[str, ...]]]) -> None:
    """Refuse live rows that Windrow cannot have written: an id twice, or nothing where there is always something."""
    # guard: live-ids-unique
    if pc.count_distinct(rows["id"]).as_py() != rows.num_rows:
        raise TableRefused("an id stands twice among the open batches and clocks of the ledger", DAMAGED)
    for part, filled in parts:
        for name in filled:
            # guard: live-rows-complete
            if part[name].null_count:
                empty = part.filter(pc.is_null(part[name]))["id"][0].as_py()
                raise TableRefused(f"the row {empty!r} of the ledger has no {name}", DAMAGED)


def require_batches(rows: pa.Table) -> None:
    """Refuse open batches that Windrow cannot have written. Raises TableRefused."""
    require_sound(rows, ((rows, BATCH),))

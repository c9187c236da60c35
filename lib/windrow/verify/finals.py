"""Check that final rows never change: closed batches, rejections and history are the same in every later version."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.delta.table import history as log_of
from windrow.verify.columns import MESSAGE, fewer
from windrow.verify.report import Difference, differing
from windrow.verify.snapshot import Snapshot


def check_finals(ledger: DeltaTable, before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    """Compare the final rows of two versions, unless the ledger was restored between them."""
    if _restored(ledger, before.version, after.version):
        return
    finals, later_finals = _finals(before), _finals(after)
    for name, earlier in finals.items():
        later = later_finals[name]
        expected = f"final rows as in version {before.version}"
        yield from differing(f"final rows ({name})", expected, fewer(earlier, later), "rows that changed")


def _finals(snapshot: Snapshot) -> dict[str, pa.Table]:
    """Return closed batches, their messages, rejections and history, without columns that are lists."""
    batches = snapshot.batches
    messages = snapshot.messages.select(list(MESSAGE))
    for name in ("id", "state"):
        messages = messages.append_column(name, batches[name].take(snapshot.messages["row"]))
    history = snapshot.history.drop_columns(["versions", "clocks"])
    finals = {
        "closed": batches.filter(pc.equal(batches["state"], "closed")),
        "messages": messages.filter(pc.equal(messages["state"], "closed")),
        "rejected": snapshot.rejected,
        "microbatch": history,
    }
    raw = snapshot.raw
    return finals if raw is None else finals | {"rejected by the format": raw.rejected, "bytes": raw.byte_count}


def _restored(ledger: DeltaTable, after: int, upto: int) -> bool:
    commits = log_of(ledger, after + 1)
    return any(after < int(commit["version"]) <= upto and commit.get("operation") == "RESTORE" for commit in commits)

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import NOW, SECOND, Row, message
from windrow.errors import RetriesExhaustedError

PAYLOAD = "x" * 5_000_000
VERSIONS, IN_TIME, LATE = 6, 80, 20
LONG_AFTER = NOW + 60 * SECOND


def rows(number: int) -> list[Row]:
    """Return the messages of a version: most in time, some long too old, and one of no key."""
    at = NOW + number * SECOND
    late = [message("late", NOW - 60 * SECOND, at, key=f"key{key}", payload=PAYLOAD) for key in range(LATE)]
    kept = [message(f"type{number}", at, at, key=f"key{key}", payload=PAYLOAD) for key in range(IN_TIME)]
    return [*kept, *late, message(key=None, payload=PAYLOAD)]


@pytest.mark.slow
def test_more_than_an_array_holds(world: World, embedded: EngineFactory) -> None:
    """A microbatch with 3 GB of payloads, of which batches hold more than the 2 GiB that one array of Arrow does, is
    committed as any other, and each byte of it is there.
    """
    for number in range(VERSIONS):
        world.publish(rows(number))
    world.publish([message("last", LONG_AFTER, LONG_AFTER)])
    world.runner(embedded).once()
    ledger_rows = (
        DeltaTable(world.ledger).to_pyarrow_table(columns=["state", "message_count", "bytes", "reason"]).to_pylist()
    )
    closed = [row for row in ledger_rows if row["state"] == "closed"]
    refused = [row["reason"] for row in ledger_rows if row["state"] == "rejected"]
    assert [row["state"] for row in ledger_rows].count("microbatch") == 1
    assert sum(row["message_count"] for row in closed) == VERSIONS * IN_TIME
    assert sum(row["bytes"] for row in closed) == VERSIONS * IN_TIME * (len(PAYLOAD) + len("type0"))
    assert (refused.count("too_old"), refused.count("invalid")) == (VERSIONS * LATE, VERSIONS)


@pytest.mark.slow
def test_too_much_stays_open(world: World, embedded: EngineFactory) -> None:
    """Open batches with more than one array of Arrow holds, which no later microbatch could read, are not committed."""
    for number in range(VERSIONS):
        world.publish([message(f"type{number}", key=f"key{key}", payload=PAYLOAD) for key in range(IN_TIME)])
    with pytest.raises(RetriesExhaustedError, match="offset overflow"):
        world.runner(embedded, max_retries=0).once()
    assert world.rows("open", "closed", "rejected", "microbatch") == []

"""A depot and a ledger in an object store."""

from __future__ import annotations

import pyarrow as pa

from tests.clocks import ManualClock
from tests.engine.world import World
from windrow.delta.creation import create_depot


class Bucket(World):
    """Tables below an address such as `s3a://bucket/prefix`."""

    def __init__(self, root: str, clock: ManualClock, payload: pa.DataType | None = None) -> None:
        self.clock, self.payload = clock, payload or pa.string()
        self.root, self.depot, self.ledger = root, f"{root}/depot", f"{root}/ledger"
        create_depot(self.depot, self.payload)

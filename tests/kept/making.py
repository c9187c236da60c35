"""Make the tables that are kept: `python -m tests.kept.making NAME`, once for each format, before its release.

They stay as they are from then on; what opens them is `test_kept.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED
from tests.engine.world import World
from tests.messages import log
from windrow.testing import Harness
from windrow.topology import Microbatch, Topology

HERE = Path(__file__).parent / "tables"


def counting() -> Topology:
    """Return a topology with a state, an event and an output."""
    topology = Topology("counting", depots=["depot"], states="counting", outputs={"copies": "copies"})
    topology.state("counts", key="kind STRING", value="count BIGINT")
    topology.event("hour", every="1h")

    @topology.function
    def count_kinds(microbatch: Microbatch) -> None:
        rows = microbatch.rows("depot")
        microbatch.state("counts").combine(rows.rename_columns({"type": "kind"}), count="count")
        microbatch.append("copies", rows)

    return topology


def messages(version: int) -> list[dict[str, object]]:
    """Return the messages of a version of the topology's depot."""
    return [{"payload": str(number), "type": f"kind {number % 3}"} for number in range(version * 5, version * 5 + 5)]


def make(name: str) -> None:
    """Make the tables of a format under a name. Raises FileExistsError: kept ones are never made again."""
    place = HERE / name
    place.mkdir(parents=True)
    world = World(place / "batcher", ManualClock(NOW))
    world.publish(*log(versions=4))
    world.runner(EMBEDDED, max_messages=60, fold_commits=2, fold_rows=10).once()
    harness = Harness(counting(), place / "topology", clock=ManualClock(NOW))
    for version in range(2):
        harness.append(messages(version))
        harness.run()
    for lock in place.rglob("*.lock"):
        lock.unlink()


if __name__ == "__main__":
    make(sys.argv[1])

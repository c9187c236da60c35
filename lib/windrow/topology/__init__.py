"""Topologies: run your own functions in exactly-once microbatches.

A topology reads depots and keeps *states* (Rama's partitioned states): tables with keys, each changed by one function
that gets a microbatch of messages and returns the changed rows. All states are in one Delta table. One commit changes
them together with the position in the depot, so each message counts exactly once in all states, whatever fails.
"""

from windrow.topology.depot import Depot
from windrow.topology.microbatch import Microbatch
from windrow.topology.running import opened, run_topology
from windrow.topology.state import State
from windrow.topology.topology import Topology

__all__ = ["Depot", "Microbatch", "State", "Topology", "opened", "run_topology"]

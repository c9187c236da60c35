"""Topologies: the microbatches of the batcher, opened to functions of users.

A topology reads depots and keeps *states* (Rama's partitioned states): tables by key, each changed by one function that
gets a microbatch of messages and returns the rows that change. All states lie in one Delta table, in whose single
commit a microbatch changes them together with its position in the depot, so each message counts exactly once in all of
them, whatever fails.
"""

from windrow.topology.depot import Depot
from windrow.topology.microbatch import Microbatch
from windrow.topology.running import opened, run_topology
from windrow.topology.state import State
from windrow.topology.topology import Topology

__all__ = ["Depot", "Microbatch", "State", "Topology", "opened", "run_topology"]

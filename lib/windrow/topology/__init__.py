"""Topologies: run functions of your own in exactly-once microbatches.

A topology reads depots and keeps *states* (Rama's partitioned states): tables with keys, which its functions read and
change. Each function gets a microbatch with the new rows of all depots. All states are in one Delta table. One commit
changes them together with the positions in the depots, so each row counts exactly once in all states, whatever fails.

`topology.py` is what a user declares, `microbatch.py` what a function gets; `arrow_state.py` and `frame_state.py` are
the states as functions see them, on Arrow tables and on Spark DataFrames. `functions.py` is the algorithm that the
runtime calls between plan and commit, `work.py` one attempt of it; `due.py` says what falls due then, `steps.py` cuts a
microbatch in step at these times. Prime, plan, commit, fence and history are those of the batcher.
"""

from windrow.topology.arrow_state import ArrowState
from windrow.topology.microbatch import Microbatch, SparkMicrobatch
from windrow.topology.running import open_topology, run_topology
from windrow.topology.topology import Depot, Topology

__all__ = ["ArrowState", "Depot", "Microbatch", "SparkMicrobatch", "Topology", "open_topology", "run_topology"]

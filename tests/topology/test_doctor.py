"""What doctor says of the tables of a topology."""

from __future__ import annotations

from pathlib import Path

from windrow.settings.settings import Settings
from windrow.testing import NOW
from windrow.topology import Topology
from windrow.topology.doctor import examine_topology


def said_of_states(location: str) -> str:
    """Return what doctor finds of a table of states."""
    topology = Topology("words", depots=["no/depot"], states=location)
    findings = examine_topology(topology, Settings(engine="embedded"), NOW)
    [of_states] = [finding for finding in findings if finding.code == "ledger"]
    assert of_states.level == "warning"
    return of_states.message


def test_states_in_a_catalog(tmp_path: Path) -> None:
    """Only at a path doctor knows that there is none: a catalog may have it."""
    assert said_of_states("main.words.states") == "main.words.states is a catalog table, whose path is not known here"
    assert said_of_states(f"{tmp_path}/states") == f"there is no ledger at {tmp_path}/states"

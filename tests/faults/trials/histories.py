"""Histories of many sources under random rules, whose drivers die at any point."""

from __future__ import annotations

from tests.engine.random_histories import play_and_compare
from tests.faults.trials.trial import Counted, Trial

HISTORIES = 100  # of a ledger, which takes as long with ten


def played(trial: Trial) -> None:
    """Play histories; every batch and every rejection must be what follows from the rules."""
    seed = trial.random.randrange(2**32)
    play_and_compare(trial.folder, seed, HISTORIES, {trial.factory.name: trial.factory})
    trial.result = Counted(0, 0, (), HISTORIES, HISTORIES)

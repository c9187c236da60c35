"""Each fault of the counted trials, tried a few times; some of them once where time is short."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.factory import EngineFactory
from tests.faults.trials.faults import FAULTS, Fault, tries
from tests.faults.trials.results import Result, markdown
from tests.faults.trials.trial import Counted

pytestmark = pytest.mark.ci

QUICK = {
    "SIGKILL at a random moment", "tick and flush by another process", "RESTORE of the ledger during a run",
    "log files touched, tables copied elsewhere", "wall clock jumps", "SIGKILL during a fold",
    "an object store that fails",
}  # fmt: skip
SEED = 1


def count(fault: Fault, factory: EngineFactory, times: int) -> None:
    """Try a fault; nothing may be lost, duplicated or different."""
    failed: list[tuple[int, Exception]] = []
    result = Result(fault.name, factory.name)
    for counted in tries(fault, factory, SEED, times, lambda *what: failed.append(what)):
        result.add(counted)
    assert failed == []
    assert (result.lost, result.duplicated, result.different) == (0, 0, 0)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in QUICK], ids=lambda fault: fault.name)
def test_quickly(fault: Fault, embedded: EngineFactory) -> None:
    """After faults that no other test has in this form, nothing is lost, duplicated or different."""
    count(fault, embedded, 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.embedded], ids=lambda fault: fault.name)
def test_often(fault: Fault, embedded: EngineFactory) -> None:
    """The same of every fault, some more times."""
    if not fault.supported():
        pytest.skip("this machine cannot do that")
    count(fault, embedded, 5)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.spark], ids=lambda fault: fault.name)
def test_on_spark(fault: Fault, spark: Any) -> None:
    """The same on Spark."""
    count(fault, EngineFactory("spark", spark), 1)


def test_what_is_counted() -> None:
    """The table has what was lost, duplicated or different in any try, and a result is sound only without, and when the
    fault struck.
    """
    result = Result("fault", "embedded")
    result.add(Counted(0, 0, (), struck=False))
    assert not result.sound
    result.add(Counted(0, 0, (), struck=True))
    assert result.sound
    result.add(Counted(2, 1, ("books",), struck=True))
    assert not result.sound
    assert "| fault | embedded | 3 | 2 | 2 | 1 | 1 |\n" in markdown([result])

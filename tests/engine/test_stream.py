"""What comes back from another process: errors as they were, and runners without what belongs to this one."""

from __future__ import annotations

import pickle

import pytest

from tests.conftest import EngineFactory
from tests.engine.world import World
from tests.messages import log
from windrow.engine.stream import _marked, failure_in
from windrow.errors import DepotChanged, LedgerMoved
from windrow.wall import WallClock


@pytest.mark.parametrize("error", [LedgerMoved('a "quoted"\nmessage', "and\na hint"), DepotChanged("x")], ids=repr)
def test_our_errors_come_back(error: LedgerMoved | DepotChanged) -> None:
    """
    An error of ours is found again in the text of a stream's error, with its type, message and hint.
    """
    found = failure_in(f"[STREAM_FAILED] Query terminated: Traceback\nRuntimeError: {_marked(error)} SQLSTATE: 38000")
    assert found is not None
    assert (type(found), found.args) == (type(error), error.args)


def test_other_errors_come_back() -> None:
    """
    Any other error keeps its name and first line; a text that holds none gives none.
    """
    assert str(failure_in(_marked(OSError("the disk\nis full")))) == "OSError: the disk"
    assert failure_in("Query terminated") is None


def test_runner_in_another_process(world: World, embedded: EngineFactory) -> None:
    """
    A copy of a runner goes on where the runner stood, with a clock of its own, and reports nothing here.
    """
    world.publish(*log(versions=1))
    runner = world.runner(embedded)
    runner._clock = WallClock()
    runner._clock.stop()
    reported: list[object] = []
    runner._report = reported.append
    copy = pickle.loads(pickle.dumps(runner))  # noqa: S301 - our own
    assert copy.once().total("messages") == 30
    assert (reported, runner.summary.microbatches) == ([], [])

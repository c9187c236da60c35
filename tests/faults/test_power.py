"""Power cuts on a real file system; `python -m tests.faults.power` makes hundreds of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.power import CallCounter, cuts, unsupported_reason

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def power() -> None:
    """Skip where no power can be cut: it takes loop devices, ext4 and the rights of root."""
    if reason := unsupported_reason():
        pytest.skip(reason)


@pytest.mark.slow_unless({"fsync": True})
@pytest.mark.parametrize("fsync", [True, False])
def test_cuts(power: None, tmp_path: Path, fsync: bool) -> None:
    """After each of three cuts the next run reads both tables; what was acknowledged is there, and nothing is twice."""
    counted = CallCounter()
    cuts(tmp_path, 7, fsync, counted, times=3)
    assert counted.cuts == 3
    assert counted.sound, counted

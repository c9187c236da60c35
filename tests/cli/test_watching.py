import signal

import pytest

from windrow.cli import watching
from windrow.runtime.wall_clock import WallClock


class TestStopping:
    def test_in_the_middle_of_a_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A signal that comes while a line of the log is being written still asks for a stop."""

        def reentrant(*_: object, **__: object) -> None:
            raise RuntimeError("reentrant call")

        monkeypatch.setattr(watching.log, "info", reentrant)
        clock = WallClock()
        with watching.stop_on_signals(clock.stop):
            signal.raise_signal(signal.SIGTERM)
        assert clock.wait(0)

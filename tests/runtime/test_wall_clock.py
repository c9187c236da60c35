"""The machine's clock, asked to stop by a signal at any moment."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from windrow.runtime.wall_clock import WallClock

SIGNALS = """
import signal, time
from windrow.runtime.wall_clock import WallClock

clock = WallClock()
signal.signal(signal.SIGALRM, lambda *_: clock.stop())
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
end = time.monotonic() + 3
while time.monotonic() < end:
    clock = WallClock()
    for _ in range(50):
        clock.wait(0)
signal.setitimer(signal.ITIMER_REAL, 0)
"""


class TestStop:
    def test_by_a_signal_while_it_waits(self) -> None:
        """A signal may ask for a stop at any moment of a wait, also while the wait begins or ends: the process goes
        on.
        """
        completed = subprocess.run([sys.executable, "-c", SIGNALS], timeout=30, check=False)
        assert completed.returncode == 0

    def test_ends_a_wait(self) -> None:
        """A stop ends a wait at once, and every later one."""
        clock = WallClock()
        threading.Timer(0.05, clock.stop).start()
        begun = time.monotonic()
        assert clock.wait(30_000_000)
        assert clock.wait(30_000_000)
        assert clock.wait(0)
        assert time.monotonic() - begun < 10

    def test_without_one(self) -> None:
        """Without a stop a wait takes its time, and says so."""
        clock = WallClock()
        begun = time.monotonic()
        assert not clock.wait(20_000)
        assert time.monotonic() - begun >= 0.02
        assert not clock.wait(0)

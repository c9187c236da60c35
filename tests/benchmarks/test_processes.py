import subprocess
import sys

import pytest

from benchmarks import processes

HELD = 300 * 2**20
HOLDING = f"for _ in range(30): held = b'x' * {HELD}; del held"
STARTING = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


class TestRun:
    @pytest.mark.ci
    def test_peak(self) -> None:
        """The peak of a command holds what it once held, however soon it let go of it."""
        idle = processes.run([sys.executable, "-c", ""])
        completed = processes.run([sys.executable, "-c", HOLDING])
        assert idle.peak_bytes < HELD < completed.peak_bytes < 2 * HELD
        assert completed.seconds > 0

    def test_own_peak(self) -> None:
        """What a command starts counts among all, and not as its own."""
        holding = f"for _ in range(5): held = b'x' * {HELD}; del held"
        starting = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holding!r}])"
        completed = processes.run([sys.executable, "-c", starting])
        assert 0 < completed.own_peak_bytes < HELD < completed.peak_bytes

    def test_driver_peak(self) -> None:
        """What a command started counts as its driver's, and what that started in turn does not."""
        holding = f"for _ in range(5): held = b'x' * {HELD}; del held"
        starting = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}])"
        assert processes.run([sys.executable, "-c", starting.format(holding)]).driver_peak_bytes > HELD
        twice = processes.run([sys.executable, "-c", starting.format(starting.format(holding))])
        assert 0 < twice.driver_peak_bytes < HELD < twice.peak_bytes

    def test_failure(self) -> None:
        """A command that fails raises an error with what it said."""
        with pytest.raises(RuntimeError, match="because of this"):
            processes.run([sys.executable, "-c", "import sys; sys.exit('because of this')"])

    def test_environment(self) -> None:
        """The command gets its variables on top of those that are there."""
        program = "import os; assert os.environ['WINDROW_BENCH'] == 'on' and os.environ['PATH']"
        assert processes.run([sys.executable, "-c", program], {"WINDROW_BENCH": "on"}).seconds > 0

    def test_windrow(self) -> None:
        """A command of Windrow runs with this Python."""
        assert processes.run(processes.windrow("--version")).peak_bytes > 0


def test_new_process() -> None:
    """A process counts when it is found a second time: at first it may show the memory of the one that started it."""
    peak = processes.Peak()
    for byte_counts in ({1: 50}, {1: 60}, {1: 60, 2: 60}, {1: 70, 2: 5}, {1: 40}):
        peak.look(byte_counts)
    assert peak.byte_count == 75


def test_family() -> None:
    """What a process started belongs to its family, with a name and a high-water mark, until it has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        family = processes.family(parent.pid)
        assert list(family.values()) == [0, 1]
        assert all("python" in name and byte_count > 0 for name, byte_count in map(processes.status, family))
        parent.communicate("\n")
    assert [processes.status(pid) for pid in family] == [("", 0), ("", 0)]

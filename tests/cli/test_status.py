import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Command, publish
from tests.messages import SECOND, message
from windrow.cli.status import FailIf
from windrow.reading.alarms import FIGURES

PATIENCE = 60.0
SCRIPT = "import sys; from windrow.cli import main; sys.exit(main(sys.argv[1:]))"


@contextmanager
def watching(directory: Path, *arguments: str, terminal: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run `windrow status --watch` in a process of its own, on a terminal if one is given."""
    command = [sys.executable, "-c", SCRIPT, "status", "--watch", "--interval", "50ms", *arguments]
    out = subprocess.PIPE if terminal is None else terminal
    process = subprocess.Popen(command, cwd=directory, stdout=out, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class TestFailIf:
    def test_names_what_holds(self, filled: Command) -> None:
        """When one of several conditions holds the status ends with 1 and names that one only."""
        result = filled("status", "--fail-if", "rejected>0", "--fail-if", "lag>5m", "--fail-if", "open_batches>1000")
        assert result.status == 1
        assert result.err == "rejected>0 holds: rejected is 1\n"
        assert "read    5 messages" in result.out

    def test_none_holds(self, filled: Command) -> None:
        """When none holds the status ends with 0, and the document says that none failed."""
        result = filled("status", "--json", "--fail-if", "rejected>1", "--fail-if", "paused")
        assert (result.status, result.err, result.json()["failed"]) == (0, "", [])

    def test_json(self, filled: Command) -> None:
        """With --json the document names the conditions that hold; without conditions it has no such field."""
        result = filled("status", "--json", "--fail-if", "open_batches>=1")
        assert (result.status, result.json()["failed"]) == (1, ["open_batches>=1 holds: open_batches is 1"])
        assert "failed" not in filled("status", "--json").json()

    def test_oldest_open_goes_by_the_clock_of_the_source(self, filled: Command) -> None:
        """An open batch of messages of 1970 is as old as the clock of its source says: seconds, not decades."""
        assert filled("status", "--fail-if", "oldest_open_age>1h").status == 0
        assert filled("status", "--fail-if", "oldest_open_age>4s").status == 1

    def test_many_sources(self, windrow: Command, tmp_path: Path) -> None:
        """Of many sources the status shows the ten that are worst, with --sources all."""
        late = [(100 + at, f"device-{at:02}") for at in range(21)]
        messages = [message("a", at * SECOND, 200 * SECOND + at, source=source) for at, source in late]
        publish(tmp_path, *messages)
        windrow("ingest", "messages.parquet")
        windrow("run")
        output, whole = windrow("status").out, windrow("status", "--sources").out
        assert "the 10 sources of 21 that are furthest behind; --sources shows all" in output
        assert "device-00 100.1 s, device-01 99.1 s" in output
        assert "device-09 " in output
        assert "and 11 more; `windrow status --sources` shows all" in output
        assert "device-10" not in output
        assert all(source in whole for _, source in late)
        assert "--sources" not in whole

    def test_paused(self, filled: Command) -> None:
        """A paused ledger is an alarm, a line of the status and a finding of the doctor, until it is resumed."""
        assert filled("pause").status == 0
        result = filled("status", "--fail-if", "paused")
        assert (result.status, result.err) == (1, "paused\n")
        assert "nothing is read until `windrow resume`" in result.out
        assert "the ledger is paused" in filled("doctor").out
        assert filled("resume").status == 0
        assert filled("status", "--fail-if", "paused").status == 0

    def test_mistakes(self, filled: Command) -> None:
        """A condition that cannot be read is wrong usage, not an alarm."""
        assert filled("status", "--fail-if", "delay>5m").status == 2
        assert filled("status", "--interval", "5s").status == 2
        assert filled("status", "--watch", "--interval", "0s").status == 2

    def test_help_names_the_figures(self) -> None:
        """The help of --fail-if names every figure."""
        help_ = FailIf.__metadata__[0]  # type: ignore[attr-defined]
        assert all(name in help_ for name in FIGURES)


class TestWatch:
    def test_a_line_each_time(self, filled: Command, tmp_path: Path) -> None:
        """On no terminal a watch prints a line each time, sees what changes, and ends by Ctrl-C with status 0."""
        with watching(tmp_path) as process:
            assert process.stdout is not None
            assert "microbatch 1; nothing waits; 1 open, 2 closed, 1 rejected" in process.stdout.readline()
            publish(tmp_path, message("b", 161 * SECOND, 161 * SECOND))
            filled("ingest", "messages.parquet")
            while "1 message in 1 version wait" not in process.stdout.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
            assert (process.returncode, err) == (0, ""), out

    def test_json(self, filled: Command, tmp_path: Path) -> None:
        """With --json each line is one document."""
        with watching(tmp_path, "--json") as process:
            assert process.stdout is not None
            documents = [json.loads(process.stdout.readline()) for _ in range(2)]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
        assert [document["totals"]["message_count"] for document in documents] == [5, 5]

    def test_until_a_condition_holds(self, filled: Command, tmp_path: Path) -> None:
        """A watch with a condition goes on until it holds, and ends with 1."""
        with watching(tmp_path, "--fail-if", "lag_messages>0") as process:
            assert process.stdout is not None
            assert "nothing waits" in process.stdout.readline()
            publish(tmp_path, message("b", 161 * SECOND, 161 * SECOND))
            filled("ingest", "messages.parquet")
            _, err = process.communicate(timeout=PATIENCE)
            assert (process.returncode, err) == (1, "lag_messages>0 holds: lag_messages is 1\n")

    def test_live_on_a_terminal(self, filled: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A terminal gets a view with the tables that is drawn over itself, and Ctrl-C ends it with status 0."""
        monkeypatch.setenv("TERM", "xterm")
        ours, theirs = pty.openpty()
        with watching(tmp_path, terminal=theirs) as process:
            os.close(theirs)
            shown = _until(ours, "Ctrl-C ends", times=2)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
        os.close(ours)
        assert "last microbatches" in shown
        assert "\x1b[1A" in shown  # up a line: what was shown is drawn over


def _until(terminal: int, text: str, times: int) -> str:
    """Read a terminal until it has shown a text so many times."""
    shown = ""
    while shown.count(text) < times:
        ready, _, _ = select.select([terminal], [], [], PATIENCE)
        assert ready, shown
        shown += os.read(terminal, 65_536).decode(errors="replace")
    return shown


class TestStatus:
    def test_says_where_the_ledger_stands(self, filled: Command, tmp_path: Path) -> None:
        """Status names what was read, what is open and closed, what was rejected, and what would have kept it."""
        result = filled("status")
        assert result.status == 0
        assert "read    5 messages in 1 microbatch" in result.out
        assert "closed  2 batches with 3 messages" in result.out
        assert "batch//k/155000000/0" in result.out
        assert "nothing waits" in result.out
        assert "11 s would have kept every message" in result.out
        publish(tmp_path, message("b", 161 * SECOND, 161 * SECOND))
        filled("ingest", "messages.parquet")
        assert "1 message in 1 version wait" in filled("status").out

    def test_json(self, filled: Command) -> None:
        """With --json the same stands in one document."""
        document = filled("status", "--json").json()
        assert document["totals"]["message_count"] == 5
        assert [row["reason"] for row in document["rejections"]] == ["too_old"]
        assert document["needed_delay"]["required_max_delay_us"] == 11 * SECOND

    def test_starts_no_jvm_and_no_compiler(self, filled: Command, tmp_path: Path) -> None:
        """Status and show load neither Spark nor the kernel's compiler, so that they answer at once."""
        script = (
            "import sys; from windrow.cli import main; status = main(['status']) or main(['show', '--open']) "
            "or main(['show', '--key', 'k', '--type', 'a', '--event-time', '1970-01-01T00:01:40Z']); "
            "loaded = {'pyspark', 'numba', 'pandas'} & set(sys.modules); "
            "sys.exit(f'loaded {loaded}' if loaded else status)"
        )
        completed = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stderr

    def test_missing_ledger(self, windrow: Command) -> None:
        """Without a ledger status says which command makes one."""
        result = windrow("status")
        assert result.status == 3
        assert "WINDROW-TABLE-MISSING" in result.err
        assert "windrow init" in result.err

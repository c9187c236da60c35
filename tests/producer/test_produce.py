"""`windrow produce` as a process: killed, fenced, resumed. Each line of an input is in the depot once, in its order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.producer.conftest import messages

LINES = 20_000
PATIENCE_SECONDS = 300


def line(number: int) -> bytes:
    content = {"key": f"k{number % 10}", "type": "t", "event_time": number, "payload": str(number)}
    return json.dumps(content).encode() + b"\n"


def numbered(path: Path, count: int) -> Path:
    path.write_bytes(b"".join(map(line, range(1, count + 1))))
    return path


def start(
    depot: str, *arguments: str, rows: int = 200, stdin: int | None = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "windrow", "produce", *arguments, "--depot", depot, "--id", "p"],
        env=os.environ | {"WINDROW_PRODUCER__MAX_COMMIT_ROWS": "200"},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


@contextmanager
def piped(depot: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A `windrow produce` process that is never left running."""
    process = start(depot, *arguments, stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                pipe.close()


def give(process: subprocess.Popen[str], *numbers: int) -> None:
    process.stdin.write("".join(line(number).decode() for number in numbers))


def count_held(depot: str) -> int:
    """Return how many messages are in a depot."""
    if not DeltaTable.is_deltatable(depot):
        return 0
    return DeltaTable(depot).transaction_version("producer:p") or 0


def await_messages(depot: str, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while count_held(depot) < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, errors


def assert_each_once(depot: str, count: int) -> None:
    """Each line is in the depot once, with its own number, in the order of the depot's versions."""
    rows = messages(depot)
    assert rows["sequence"].to_pylist() == list(range(1, count + 1))
    assert rows["payload"].to_pylist() == [str(number) for number in range(1, count + 1)]
    feed = pa.table(DeltaTable(depot).load_cdf(starting_version=1)).select(["sequence", "_commit_version"])
    versions = feed.sort_by("sequence")["_commit_version"].to_pylist()
    assert versions == sorted(versions)


class TestKilled:
    @pytest.mark.ci
    def test_at_random(self, depot, tmp_path):
        """However often the process is killed between commits and restarted with the same input, no message is missing,
        doubled or out of order.
        """
        random.seed(23)
        file, kills, before = numbered(tmp_path / "lines", LINES), 0, 0
        while True:
            process = start(depot, str(file), "--json")
            aim = before + random.randrange(1, LINES // 3)
            while process.poll() is None and count_held(depot) < aim:
                time.sleep(random.random() / 50)
            process.kill()
            status, out, errors = ended(process)
            if status == 0:
                break
            assert status == -signal.SIGKILL, errors
            kills, before = kills + 1, count_held(depot)
        assert kills >= 2
        assert json.loads(out)["skipped"] == before
        assert_each_once(depot, LINES)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_asked_to_stop(self, depot, number):
        """SIGTERM and SIGINT end it while it waits for lines; all lines read so far are in the depot, and the exit
        status is 0.
        """
        with piped(depot) as process:
            give(process, 1, 2, 3)
            await_messages(depot, 3, process)
            give(process, 4)
            process.stdin.write('{"half a line')
            await_messages(depot, 4, process)
            process.send_signal(number)
            status, out, _ = ended(process)
        assert status == 0
        assert "Stopped after line 4." in out
        assert_each_once(depot, 4)


@pytest.mark.ci
class TestFenced:
    def test_in_turns(self, depot):
        """When a second process writes under the id, the first one is fenced, says so, and writes nothing more."""
        with piped(depot) as first:
            give(first, *range(1, 11))
            await_messages(depot, 10, first)
            with piped(depot, "--json") as second:
                give(second, *range(1, 21))
                await_messages(depot, 20, second)
                give(first, *range(11, 31))
                status, _, errors = ended(first)
                assert status == 3
                assert "WINDROW-PRODUCER-FENCED" in errors
                assert "Lines up to 10 are in the depot" in errors
                status, out, _ = ended(second)
                assert (status, json.loads(out)["skipped"]) == (0, 10)
        assert_each_once(depot, 20)

    def test_at_once(self, depot):
        """If two processes begin with the same input at the same moment, one is fenced and the other sends all of
        it.
        """
        with piped(depot) as first, piped(depot) as second:
            last = 0
            while first.poll() is None and second.poll() is None:
                last += 1
                for process in (first, second):
                    with suppress(BrokenPipeError):
                        give(process, last)
            winner, loser = (first, second) if second.poll() is not None else (second, first)
            assert loser.wait(PATIENCE_SECONDS) == 3
            assert "WINDROW-PRODUCER-FENCED" in loser.stderr.read()
            assert ended(winner)[0] == 0
        assert_each_once(depot, last)


@pytest.mark.ci
class TestResumed:
    def test_growing_file(self, depot, tmp_path):
        """A file that has grown is resumed after the last line sent; a line without a newline is not sent yet."""
        file = numbered(tmp_path / "lines", 120)
        whole = line(121)
        for content, document in [
            (b"", {"message_count": 120, "skipped": 0, "has_unterminated_line": False}),
            (whole[:30], {"message_count": 0, "skipped": 120, "has_unterminated_line": True}),
            (whole[30:-1], {"message_count": 1, "skipped": 120, "has_unterminated_line": False}),
            (b"\n" + line(122), {"message_count": 1, "skipped": 121, "has_unterminated_line": False}),
        ]:
            with file.open("ab") as end:
                end.write(content)
            status, out, errors = ended(start(depot, str(file), "--json"))
            assert status == 0, errors
            assert json.loads(out).items() >= document.items()
        assert_each_once(depot, 122)

    def test_closed(self, depot):
        """A closed standard input is an error; another file that has its descriptor is not read."""
        command = f"exec {sys.executable} -m windrow produce --depot {depot} --id p <&-"
        completed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert (completed.returncode, completed.stderr.partition(":")[0]) == (2, "WINDROW-FILE")

    def test_live(self, depot):
        """Input that cannot be given again is sent as it comes; lines are committed even while the input is silent."""
        for start in (1, 11):
            with piped(depot, "--no-resume") as process:
                for number in range(start, start + 10):
                    give(process, number)
                    await_messages(depot, number, process)
                assert ended(process)[0] == 0
        assert_each_once(depot, 20)

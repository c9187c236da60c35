"""Processes that ingest raw files are killed, or come at the same time; what they hold in memory is bounded."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.ingest.raw_files.test_ingest import MEBI, contents, files_of, source_names, written

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 300


@contextmanager
def ingesting(depot: Path, *files: Path, **order: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process that ingests files, and leave none behind."""
    full_order = {"depot": str(depot), "files": [str(file) for file in files]} | order
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ingest.raw_files.ingesting", json.dumps(full_order)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def read_line(process: subprocess.Popen[str], line: str = "") -> Any:
    """Give a process a line, and return what it says at its end."""
    out, _ = process.communicate(f"{line}\n", timeout=PATIENCE_SECONDS)
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_killed_in_the_middle(tmp_path: Path) -> None:
    """A process that is killed while it reads leaves no row, and when it is done again each chunk is there once; the
    files that it left are removed by a clean-up.
    """
    depot, content = tmp_path / "depot", random.Random(1).randbytes(30 * MEBI)
    first, second = written(tmp_path / "first", b"abc"), written(tmp_path / "second", content)
    with ingesting(depot, first) as process:
        assert read_line(process)["known"] == [False]
    with ingesting(depot, second, stop_at=25 * MEBI) as process:
        assert process.stdout.readline() == "reached\n"
        process.kill()
        process.wait(PATIENCE_SECONDS)
    assert contents(str(depot)) == {str(first): b"abc"}
    left = files_of(str(depot)) - source_names(str(depot))
    assert len(left) == 1
    with ingesting(depot, first, second) as process:
        assert read_line(process)["known"] == [True, False]
    assert contents(str(depot)) == {str(first): b"abc", str(second): content}
    removed = DeltaTable(depot).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert {Path(path).name for path in removed} == left
    assert contents(str(depot)) == {str(first): b"abc", str(second): content}


def test_killed_between_commits(tmp_path: Path) -> None:
    """A process that is killed in the middle of a large file leaves the versions that it committed; the next one goes
    on behind them, as often as that happens, and each chunk is there once.
    """
    depot, content = tmp_path / "depot", random.Random(4).randbytes(30 * MEBI + 1)
    file, settings = written(tmp_path / "file", content), {"max_commit_bytes": 4 * MEBI}
    for stop_at in (11, 23):
        with ingesting(depot, file, settings=settings, stop_at=stop_at * MEBI) as process:
            assert process.stdout.readline() == "reached\n"
            process.kill()
            process.wait(PATIENCE_SECONDS)
        assert DeltaTable(depot).version() == (stop_at - 1) // 4
    with ingesting(depot, file, settings=settings) as process:
        [result] = read_line(process)["files"]
    assert (result["resumed_at_byte"], result["byte_count"], result["version_count"]) == (20 * MEBI, 10 * MEBI + 1, 3)
    assert contents(str(depot)) == {str(file): content}
    with ingesting(depot, file, settings=settings) as process:
        assert read_line(process)["known"] == [True]


@pytest.mark.slow_unless({"size": 20 * MEBI + 5})
@pytest.mark.parametrize("size", [20 * MEBI, 20 * MEBI + 5])
def test_two_at_once_in_versions(tmp_path: Path, size: int) -> None:
    """Of two processes that ingest a large file at the same time, each adds what the other has not, and it is there
    once.
    """
    depot, content = tmp_path / "depot", random.Random(5).randbytes(size)
    file, settings = written(tmp_path / "file", content), {"max_commit_bytes": 2 * MEBI}
    with (
        ingesting(depot, file, settings=settings, stop_at=MEBI) as first,
        ingesting(depot, file, settings=settings, stop_at=MEBI) as second,
    ):
        for process in (first, second):
            assert process.stdout.readline() == "reached\n"
        for process in (first, second):
            process.stdin.write("\n")
            process.stdin.flush()
        added = [read_line(process)["files"][0]["version_count"] for process in (first, second)]
    assert sum(added) == DeltaTable(depot).version() == -(-size // (2 * MEBI))
    assert contents(str(depot)) == {str(file): content}
    assert files_of(str(depot)) == source_names(str(depot))


@pytest.mark.slow
def test_two_at_once(tmp_path: Path) -> None:
    """Of two processes that have both read the same file, one adds it and the other finds it there, and removes its
    own.
    """
    depot, content = tmp_path / "depot", random.Random(2).randbytes(5 * MEBI)
    file = written(tmp_path / "file", content)
    with ingesting(depot, file, stop_at=5 * MEBI) as first, ingesting(depot, file, stop_at=5 * MEBI) as second:
        for process in (first, second):
            assert process.stdout.readline() == "reached\n"
        for process in (first, second):
            process.stdin.write("\n")
            process.stdin.flush()
        assert sorted([read_line(first)["known"], read_line(second)["known"]]) == [[False], [True]]
    assert contents(str(depot)) == {str(file): content}
    assert files_of(str(depot)) == source_names(str(depot))


def test_other_content_at_once(tmp_path: Path) -> None:
    """Of two processes that read a file before and after it was replaced, one is refused, and no number is taken
    twice.
    """
    depot, file = tmp_path / "depot", written(tmp_path / "file", b"a" * MEBI)
    with ingesting(depot, file, stop_at=MEBI) as first:
        assert first.stdout.readline() == "reached\n"
        later = written(tmp_path / "later", b"b" * MEBI)
        later.replace(file)
        with ingesting(depot, file) as second:
            assert read_line(second)["known"] == [False]
        assert read_line(first)["error"] == "WINDROW-FILE"
    assert contents(str(depot)) == {str(file): b"b" * MEBI}
    assert files_of(str(depot)) == source_names(str(depot))


@pytest.mark.slow_unless({"kind": "sparse"})
@pytest.mark.parametrize("kind", ["sparse", "random"])
def test_memory_is_bounded(tmp_path: Path, kind: str) -> None:
    """Two files of 150 MB that are read at a time take little more memory than small ones."""
    peaks = []
    for size in (1, 150):
        depot = tmp_path / f"depot-{size}"
        files = [tmp_path / f"{size}-{at}" for at in range(2)]
        for at, file in enumerate(files):
            with file.open("wb") as stream:
                for number in range(size if kind == "random" else 0):
                    stream.write(random.Random(1_000 * at + number).randbytes(MEBI))
                stream.truncate(size * MEBI + at)
        with ingesting(depot, *files) as process:
            peaks.append(read_line(process)["peak"])
        assert DeltaTable(depot).version() == 2
    assert peaks[1] - peaks[0] < 120 * MEBI

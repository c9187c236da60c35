"""The cache of the compiled kernel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import njit

import windrow
from windrow.columnar.compiled import UNCOUNTED

PROGRAM = """
import pyarrow, windrow
time = pyarrow.array([1_000_000], pyarrow.timestamp("us", tz="UTC"))
messages = pyarrow.table({"key": ["k"], "type": ["a"], "event_time": time, "received_at": time})
print(windrow.__file__, windrow.batch(messages, windrow.Rules()).batches.num_rows)
"""


@pytest.mark.slow
def test_nowhere(tmp_path: Path) -> None:
    """If neither the library's directory nor a home is writable, as for a service user of a cluster, each process
    compiles the kernel.
    """
    library = read_only(tmp_path)
    assert batched(tmp_path, os.devnull) == [f"{library / '__init__.py'} 1"]


@pytest.mark.slow
def test_home(tmp_path: Path) -> None:
    """If the library is read-only but the user has a home, the second process finds everything that the first one
    compiled.
    """
    library = read_only(tmp_path)
    first, second = (batched(tmp_path, str(tmp_path / "home"), NUMBA_DEBUG_CACHE="1") for _ in range(2))
    kept = [sum("data saved to" in line for line in output) for output in (first, second)]
    loaded = [sum("data loaded from" in line for line in output) for output in (first, second)]
    assert kept[0] > 4
    assert (kept, loaded) == ([kept[0], 0], [0, kept[0]])
    assert f"{library / '__init__.py'} 1" in second


@pytest.mark.parametrize(("options", "counts"), [({}, True), (UNCOUNTED, False)], ids=["default", "uncounted"])
def test_counts_references(options: dict[str, Any], counts: bool) -> None:
    """Numba's machine code counts references unless it is told not to."""

    def byte_at(buffer: Any, at: int) -> Any:
        return buffer[at]

    read = njit(**options)(byte_at)
    assert read(np.arange(3, dtype=np.uint8), 2) == 2
    (code,) = read.inspect_llvm().values()
    assert ("NRT_" in code) == counts, f"numba {numba.__version__} heeds {UNCOUNTED} no longer; JSON is 5 times as slow"


def read_only(folder: Path) -> Path:
    """Return a copy of the library in a directory where nothing can be cached, not even by root."""
    library = folder / "windrow"
    shutil.copytree(Path(windrow.__file__).parent, library, ignore=shutil.ignore_patterns("__pycache__"))
    for part in (library, library / "batching"):
        (part / "__pycache__").write_text("a file, where a directory would have to be made")
    return library


def batched(folder: Path, home: str, **more: str) -> list[str]:
    """Return the lines of a process that batches one message with the library in a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    alone = kept | {"PYTHONPATH": str(folder), "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"} | more
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, env=alone, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.splitlines()


def test_documented() -> None:
    """Nothing is imported from inside numba, whose modules may change with any version."""
    library = Path(windrow.__file__).parent
    inside = re.compile(r"^\s*(from|import) numba\.", re.MULTILINE)
    assert [source for source in library.rglob("*.py") if inside.search(source.read_text("utf-8"))] == []

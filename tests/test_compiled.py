"""Where the compiled kernel is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import windrow

PROGRAM = """
import pyarrow, windrow
time = pyarrow.array([1_000_000], pyarrow.timestamp("us", tz="UTC"))
messages = pyarrow.table({"key": ["k"], "type": ["a"], "event_time": time, "received_at": time})
print(windrow.__file__, windrow.batch(messages, windrow.Rules()).batches.num_rows)
"""


@pytest.mark.slow
def test_nowhere(tmp_path: Path) -> None:
    """
    Where nothing can be written, neither beside the library nor in a home, as for the user of a cluster's service, the
    kernel is compiled by each process.
    """
    library = tmp_path / "windrow"
    shutil.copytree(Path(windrow.__file__).parent, library, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (library, library / "batching"):
        (folder / "__pycache__").write_text("a file, where a directory would have to be made")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    nowhere = kept | {"PYTHONPATH": str(tmp_path), "HOME": os.devnull, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, env=nowhere, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.split() == [str(library / "__init__.py"), "1"]

"""What docs/downstream.md shows runs as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command, filled, windrow  # noqa: F401 - fixtures

PAGE = (Path(__file__).parents[1] / "docs" / "downstream.md").read_text(encoding="utf-8")
SPARK, PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
# The commands of this Python, installed or not.
HERE = f"""
python() {{ '{sys.executable}' "$@"; }}
windrow() {{ python -c 'import sys; from windrow.cli import main; sys.exit(main())' "$@"; }}
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_commands(filled: Command) -> None:  # noqa: F811 - the fixture
    """
    Every command of the page runs.
    """
    lines = blocks("console")[0].splitlines()
    for line in lines:
        said = filled(*shlex.split(line, comments=True)[1:])
        assert said.status == 0, f"{line}: {said.err}"
    assert len(lines) == 4


def test_python(filled: Command, capfd: pytest.CaptureFixture[str]) -> None:  # noqa: F811 - the fixture
    """
    The loop takes the batches once; run again it finds its position and nothing new.
    """
    for printed in ("2 batches\n", ""):
        exec(PYTHON, {})  # noqa: S102 - our own page
        assert capfd.readouterr().out == printed


def test_shell(filled: Command, tmp_path: Path) -> None:  # noqa: F811 - the fixture
    """
    The script exports the batches once; run again it writes a file without rows.
    """
    for _ in range(2):
        subprocess.run(["bash", "-euc", HERE + blocks("sh")[0]], check=True, cwd=tmp_path)
    counts = [pq.read_metadata(file).num_rows for file in sorted((tmp_path / "data").glob("closed-*.parquet"))]
    assert counts == [2, 0]


@pytest.mark.spark
def test_spark(filled: Command, tmp_path: Path, spark: Any) -> None:  # noqa: F811 - the fixture
    """
    The stream writes the closed batches, and the SQL finds them.
    """
    ledger = tmp_path / "data" / "ledger"
    exec(SPARK.replace('"data/', f'"{tmp_path}/data/'), {"spark": spark})  # noqa: S102 - our own page
    assert DeltaTable(tmp_path / "data" / "reports").to_pyarrow_table().num_rows == 2
    statements = [one for one in blocks("sql")[0].split(";") if one.strip()]
    found = [spark.sql(one.replace("/srv/data/ledger", str(ledger))).collect() for one in statements]
    assert [len(rows) for rows in found] == [1, 2]

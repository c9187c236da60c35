import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Command, windrow  # noqa: F401 - a fixture
from tests.messages import SECOND, message, table

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def at_work(windrow: Command, tmp_path: Path) -> Command:  # noqa: F811 - the fixture
    """A directory with a file of messages to ingest, as the README has it."""
    (tmp_path / "data").mkdir()
    pq.write_table(table([message("a", 100 * SECOND, 100 * SECOND)]), tmp_path / "data" / "messages.parquet")
    return windrow


def test_commands(at_work: Command) -> None:
    """
    Every windrow command of the README runs, in its order (but the ones that go on for ever).
    """
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("windrow ")]
    assert len(lines) > 5
    for line in lines:
        if "--every" not in line:
            arguments = shlex.split(line, comments=True)[1:]
            given = ["data/messages.parquet" if "*" in argument else argument for argument in arguments]
            said = at_work(*given)
            assert said.status == 0, f"{line}: {said.err}"


def test_python(at_work: Command) -> None:
    """
    The Python of the README runs as it stands.
    """
    at_work("init")
    found: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, found)  # noqa: S102 - our own README
    assert found["result"].batches.num_rows == 2
    assert found["summary"].total("messages") == 0


def test_make_targets_are_there() -> None:
    """
    Every make target that the README names is in the Makefile.
    """
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"make ([a-z-]+)", README.read_text(encoding="utf-8")))
    assert {"demo", "test"} <= named
    assert all(f"\n{target}:" in makefile for target in named)


@pytest.mark.spark
def test_sql(at_work: Command, spark: Any) -> None:
    """
    The SQL of the README runs on the ledger that its commands made.
    """
    at_work("ingest", "data/messages.parquet")
    at_work("run")
    root = Path.cwd()
    statements = [part for block in blocks("sql") for part in block.split(";") if part.strip()]
    for statement in statements:
        spark.sql(statement.replace("/srv/data/ledger", str(root / "data" / "ledger"))).collect()
    assert len(statements) == 2

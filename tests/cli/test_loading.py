"""What a command loads before it answers: what it does not need costs every call of it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from deltalake import write_deltalake

from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import log
from windrow.cli import select_commands

PROGRAM = """
import sys
from windrow.cli import main
status = main(sys.argv[1:])
print("loaded", *sorted({name.partition(".")[0] for name in sys.modules}))
raise SystemExit(status)
"""
COUNTED = """
from windrow.topology import Microbatch, Topology
topology = Topology("counted", depots=["numbers"], states="counts")
topology.state("counts", key="number BIGINT", value="times BIGINT")
@topology.function
def count(microbatch: Microbatch) -> None:
    microbatch.state("counts").combine(microbatch.rows("numbers"), times="count")
"""
HEAVY = {"altair", "duckdb", "great_expectations", "numba", "pandas", "pyspark", "sqlglot"}
ARROW = {"deltalake", "numpy", "pyarrow"}


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a ledger that has read its depot."""
    folder = tmp_path_factory.mktemp("loading")
    world = World(folder, ManualClock())
    world.publish(*log(versions=1))
    world.runner(EngineFactory("embedded", None)).once()
    chosen = f'depot = "{world.depot}"\nledger = "{world.ledger}"\nengine = "spark"\n'
    (folder / "windrow.toml").write_text(f'{chosen}idle_timeout = "never"\n')
    (folder / "patient.toml").write_text(f'{chosen}idle_timeout = "36500d"\n')
    (folder / "counted.py").write_text(COUNTED)
    write_deltalake(folder / "numbers", pa.table({"number": [1, 2]}))
    return folder


@pytest.mark.parametrize(
    ("command", "never"),
    [
        (["--version"], HEAVY | ARROW),
        (["--help"], HEAVY | ARROW),
        (["status", "--json"], HEAVY - {"duckdb"}),
        (["status"], HEAVY - {"duckdb"}),
        (["show"], HEAVY - {"duckdb"}),
        (["run", "--once"], HEAVY | {"filelock"}),
        (["run", "--once", "--engine", "embedded"], HEAVY | {"filelock"}),
        (["run", "--once", "--config", "patient.toml"], HEAVY | {"filelock"}),
        (["run", "counted:topology", "--once", "--engine", "embedded"], HEAVY - {"pandas", "sqlglot"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_loads(batched: Path, command: list[str], never: set[str]) -> None:
    """A command that asks loads neither Spark nor compiler nor what only others need, pandas least of all."""
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], cwd=batched, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    loaded = set(completed.stdout.rpartition("loaded ")[2].split())
    assert "windrow" in loaded
    assert loaded & never == set()


@pytest.mark.parametrize(("pool", "kind"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_memory(batched: Path, pool: str | None, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command takes Arrow's memory from the system, unless the environment says something else."""
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    if pool is not None:
        monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", pool)
    asking = PROGRAM.replace(
        'print("loaded"', 'import pyarrow\nprint(pyarrow.default_memory_pool().backend_name, "loaded"'
    )
    completed = subprocess.run(
        [sys.executable, "-c", asking, "status", "--json"], cwd=batched, capture_output=True, text=True, check=True
    )
    assert kind in completed.stdout.splitlines()[-1].split()


def test_builds() -> None:
    """Of the commands only the one is built that is asked for, whichever it is; all of them when it is none."""
    everything = built([])
    assert all(built([name, "--json"]) == {name} for name in everything)
    assert built(["--help"]) == built(["nonsense"]) == everything > {"run", "status"}


def built(arguments: list[str]) -> set[str]:
    """Return the names of the commands that are built for what is given."""
    return set(typer.main.get_command(select_commands(arguments)).commands)  # type: ignore[attr-defined]


ON_THREADS = """
import ctypes, sys, threading
from windrow.cli import main
main(["--version"])
held = threading.Barrier(9)
def work():
    bytearray(100)
    ctypes.CDLL(None).malloc(1000)
    held.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
held.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = libc.fdopen(1, b"w")
libc.malloc_info(0, ctypes.c_void_p(out))
libc.fflush(ctypes.c_void_p(out))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="arenas are glibc's")
def test_threads_share_arenas() -> None:
    """Memory that was freed on one thread serves the next: eight threads do not have an arena each."""
    completed = subprocess.run([sys.executable, "-c", ON_THREADS], capture_output=True, text=True, check=True)
    assert 1 <= completed.stdout.count("<heap nr=") <= 2, completed.stdout

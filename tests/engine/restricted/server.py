"""Spark's own Connect server on the loopback interface, which refuses what Databricks refuses on serverless compute."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark
from delta.pip_utils import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from tests.conftest import FAST_JAVA
from tests.engine.processes import PATIENCE_SECONDS, ROOT
from windrow.engine.spark.session import LOOPBACK, SETTINGS

SPARK = Path(pyspark.__file__).parent
SOURCES = sorted(Path(__file__).parent.glob("*.java"))
JARS = ("spark-connect_*", "hadoop-client-api-*")
# Custom code has 1 GB there (Serverless compute limitations, docs.databricks.com). Spark limits addresses instead of
# memory, and Python with Arrow, delta-rs and DuckDB takes addresses for 2.5 GB before it reads a row.
MEMORY_OF_FUNCTIONS = "3500m"


class Server(NamedTuple):
    """A running server: its address for `SPARK_REMOTE`."""

    remote: str


@contextmanager
def restricted_server(
    directory: Path, python: Path = Path(sys.executable), sources: Sequence[Path] = (ROOT, ROOT / "lib")
) -> Iterator[Server]:
    """Start a server whose files are below a directory, and end it with the block.

    Functions run in `python`, which finds modules among `sources` beside those that it has.
    """
    classes, port = compiled(directory / "classes"), free_port()
    settings = SETTINGS | {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.interceptor.classes": "Restrictions",
        "spark.connect.session.planCompression.threshold": "-1",  # the interceptor reads plans
        "spark.driver.extraClassPath": str(classes),
        "spark.delta.logStore.managed.impl": "io.delta.storage.LocalLogStore",
        "spark.executor.pyspark.memory": MEMORY_OF_FUNCTIONS,
        "spark.hadoop.fs.managed.impl": "ManagedStorage",
        "spark.jars.packages": packages(),
        "spark.log.level": "WARN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.warehouse.dir": f"managed:{directory}/managed",
    }
    flags = [flag for name, value in settings.items() for flag in ("--conf", f"{name}={value}")]
    home = home_without_python(directory / "spark")
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", *flags]
    environment = os.environ | dict([FAST_JAVA]) | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": str(python)}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, sources))
    with (directory / "server.txt").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            wait_until_ready(process, port, directory / "server.txt")
            yield Server(f"sc://{LOOPBACK}:{port}")
        finally:
            process.terminate()
            process.wait()


def home_without_python(directory: Path) -> Path:
    """Make a home of Spark without its zipped Python, so that workers load the one of their environment.

    Of a zip each worker compiles what it imports, and the server waits ten seconds for the worker of a stream.
    """
    directory.mkdir()
    for entry in SPARK.iterdir():
        if entry.name != "python":
            (directory / entry.name).symlink_to(entry)
    return directory


def compiled(directory: Path) -> Path:
    """Compile the interceptor and the storage against Spark's jars, and return the directory of the classes."""
    jars = ":".join(str(jar) for name in JARS for jar in (SPARK / "jars").glob(f"{name}.jar"))
    subprocess.run(["javac", "--release", "17", "-cp", jars, "-d", str(directory), *map(str, SOURCES)], check=True)
    return directory


def packages() -> str:
    """Return the package of Delta for this version of Spark, as a local session takes it."""
    builder = configure_spark_with_delta_pip(SparkSession.Builder())
    return str(builder._options["spark.jars.packages"])


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        return int(listening.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    """Wait until the server listens; fail with what it printed if it ends instead."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, output.read_text(errors="replace")[-6_000:]
        with socket.socket() as client:
            if client.connect_ex((LOOPBACK, port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(output.read_text(errors="replace")[-6_000:])

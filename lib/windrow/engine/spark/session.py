"""Find or start a Spark session with Delta, and tell what a path means to it."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from windrow.delta.locations import is_catalog_name
from windrow.engine.choice import from_platform
from windrow.engine.spark import stores
from windrow.errors import EngineUnavailableError

LOOPBACK = "127.0.0.1"

# 2 partitions: a MERGE of a few thousand rows takes 0.4 s instead of the 3 to 7 s of Spark's and Delta's defaults. With
# the default of 10,000 tasks to list directories one VACUUM takes minutes.
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def find_session(*tables: str) -> SparkSession:
    """Return the running session, the platform's session, or a local one for these tables.

    Raises EngineUnavailableError.
    """
    _silence()
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    return SparkSession.builder.getOrCreate() if from_platform() else local_session(tables=tables)


def local_session(application: str = "windrow", master: str = "local[*]", tables: Collection[str] = ()) -> SparkSession:
    """Return the running session, or start a local one for these tables. Raises EngineUnavailableError.

    Spark's resolver fetches Delta's jars at the first start, and those for S3 if a table is there. The JVM's standard
    error goes to a file, which the error names. If a table is given by name, names outlive the process, in Spark's
    default `metastore_db` and `spark-warehouse` in the working directory.
    """
    from delta import configure_spark_with_delta_pip

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(application)
    scratch = Path(tempfile.mkdtemp(prefix="windrow-spark-"))
    if any(map(is_catalog_name, tables)):
        builder = builder.config("spark.driver.extraJavaOptions", f"-Dderby.stream.error.file={scratch / 'derby.log'}")
        builder = builder.enableHiveSupport()
    else:
        builder = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    on_s3 = any(map(stores.is_on_s3, tables))
    for name, value in (SETTINGS | (stores.session_settings() if on_s3 else {})).items():
        builder = builder.config(name, value)
    log = scratch / "java.log"
    try:
        with _output_to(log):
            packages = [*stores.PACKAGES] if on_s3 else []
            session = configure_spark_with_delta_pip(builder, packages).getOrCreate()
    except Exception as error:
        raise EngineUnavailableError(
            f"Spark did not start: {str(error).splitlines()[0]}",
            f"The output of Java is in {log}. The first start needs Maven Central to fetch jars.",
        ) from error
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    session.sparkContext.setLogLevel("ERROR")
    _silence()
    return session


_BARE: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def bare_is_local(session: SparkSession) -> bool:
    """Tell whether a path without a scheme means a local disk to a session, and not HDFS or the like.

    Each session is asked once: its error for a path that does not exist shows the scheme.
    """
    if session not in _BARE:
        missed = ""
        try:
            session.read.text(f"/windrow-{uuid4()}")
        except PySparkException as error:
            missed = (error.getMessageParameters() or {}).get("path", "")
        _BARE[session] = missed.startswith("file:")
    return _BARE[session]


# These loggers print the whole trace of an error that is also raised, and that we report.
LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def _silence() -> None:
    for name in LOUD:
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Redirect the output of a child process started inside to `file`, because Delta's VACUUM prints its results."""
    streams = (sys.stdout, sys.stderr)
    kept = [os.dup(number) for number in (1, 2)]
    for stream in streams:
        stream.flush()
    with file.open("wb") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        for number, (stream, descriptor) in enumerate(zip(streams, kept, strict=True), 1):
            stream.flush()
            os.dup2(descriptor, number)
            os.close(descriptor)

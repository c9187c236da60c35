"""Object stores of a Spark session: the jars and settings of a local one, and whether commits on S3 exclude each other.

Delta's own log stores overwrite a log entry on S3 that another writer has written meanwhile, unless both are in one
JVM: even those that create the entry, because S3A only checks beforehand whether it exists. Our log store (`java/`)
makes S3 refuse the entry if it exists. delta-rs does the same, so one of two commits of the same version fails,
whichever engines made them.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from windrow.errors import EngineUnavailableError

__all__ = ["JAR"]
S3 = ("s3a", "s3", "s3n")
LOG_STORE = "windrow.ConditionalLogStore"
JAR = Path(__file__).with_name("java") / "log_store.jar"
EXCLUDING = (LOG_STORE, "io.delta.storage.S3DynamoDBLogStore")
# The Hadoop of pyspark 4.2 and its AWS SDK as separate modules: 50 jars of 18 MB, where the bundle has 686 MB.
HADOOP, SDK = "3.5.0", "2.35.4"
PACKAGES = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    f"software.amazon.awssdk:s3-transfer-manager:{SDK}",
    f"software.amazon.awssdk:sts:{SDK}",
)
SETTINGS = {
    "spark.jars": str(JAR),
    "spark.jars.excludes": "software.amazon.awssdk:bundle,org.wildfly.openssl:wildfly-openssl",
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.s3a.performance.flags": "create,mkdir,delete",  # fewer requests; safe only with our log store
    **{f"spark.delta.logStore.{scheme}.impl": LOG_STORE for scheme in S3},
}


def is_on_s3(location: str) -> bool:
    """Tell whether a table is on S3."""
    return location.partition(":")[0].lower() in S3


def session_settings() -> dict[str, str]:
    """Return the settings of a local session for S3; endpoint and region are those of delta-rs' variables.

    S3A finds the credentials in the environment.
    """
    endpoint, region = (os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_REGION"))
    options = {"endpoint": endpoint, "path.style.access": endpoint and "true", "endpoint.region": region}
    return SETTINGS | {f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items() if value}


def require_exclusion(session: SparkSession, location: str) -> None:
    """Raise EngineUnavailableError if a commit to a table on S3 could replace that of another writer."""
    if not is_on_s3(location):
        return
    setting = f"spark.delta.logStore.{location.partition(':')[0]}.impl"
    # guard: spark-store-exclusion
    if (store := session.conf.get(setting, None)) not in EXCLUDING:
        raise EngineUnavailableError(
            f"a commit of Spark to {location} could silently replace a commit of another writer: "
            f"{setting} is {store or 'not set'}",
            f"Start the session with {setting}={LOG_STORE} and --jars {JAR}, or set single_writer = true if nobody "
            "else ever writes to the table.",
        )

"""Choose an engine by what is installed, and say what is missing for Spark."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import Any

from windrow.errors import EngineUnavailableError, MissingExtraError


def choose(engine: str, session: Any = None) -> str:
    """Return `spark` or `embedded`; the setting `engine` may be `auto`."""
    if engine != "auto":
        return engine
    ready = session is not None or from_platform() or (find_spec("delta") and _java())
    return "spark" if ready else "embedded"


def require_spark(session: Any = None) -> None:
    """Raise an error that says what to install if Spark cannot run here."""
    if session is not None or from_platform():
        return
    if not (find_spec("pyspark") and find_spec("delta")):
        raise MissingExtraError(
            "the Spark engine needs pyspark and delta-spark",
            "Install them: pip install 'windrow-delta[spark]'. Or run without a JVM: --engine embedded.",
        )
    if not _java():
        home = os.environ.get("JAVA_HOME")
        raise EngineUnavailableError(
            f"the Spark engine needs Java, but found none {f'in JAVA_HOME ({home})' if home else 'on the path'}",
            "Install Java 17 (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME. "
            "Or run without Java: --engine embedded.",
        )


# Set where a platform provides the session: Spark Connect, Databricks, spark-submit.
PLATFORMS = ("SPARK_REMOTE", "DATABRICKS_RUNTIME_VERSION", "PYSPARK_GATEWAY_PORT")


def from_platform() -> bool:
    """Tell whether a platform provides Spark's session, with its own version of Delta."""
    return any(name in os.environ for name in PLATFORMS)


def _java() -> bool:
    """Tell whether there is a Java for Spark to start: in JAVA_HOME if that is set, else on the path."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None) is not None

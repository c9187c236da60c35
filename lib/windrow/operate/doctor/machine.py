"""Check the machine: packages and Java, and Spark itself only if asked, because that may use the network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from platform import python_version

from packaging.requirements import Requirement

from windrow.engine import from_platform
from windrow.errors import WindrowError
from windrow.operate.doctor.finding import Finding, error, ok, warning

DISTRIBUTION = "windrow-delta"
JAVA = 17  # what Spark 4 requires
JAVA_TIMEOUT_SECONDS = 30  # a guess: java -version takes a tenth of a second


def check_machine(engine: str, network: bool) -> Iterator[Finding]:
    """Check the machine for the engine that will run; with `network`, start Spark, which may download its jars.

    A platform that provides Spark's session also has its Java and its jars.
    """
    yield from check_packages()
    if engine == "spark" and not from_platform():
        java = check_java()
        yield java
        if network and java.level == "ok":
            yield check_spark()


def check_packages() -> Iterator[Finding]:
    """Compare the installed packages with Windrow's requirements."""
    installed = {"Python": python_version()}
    for needed in map(Requirement, metadata.requires(DISTRIBUTION) or ()):
        with suppress(metadata.PackageNotFoundError):  # it belongs to an extra
            installed[needed.name] = version = metadata.version(needed.name)
            if not needed.specifier.contains(version, prereleases=True):
                message = f"{needed.name} {version} is outside the versions that Windrow works with"
                yield warning("packages", message, f"pip install '{needed.name}{needed.specifier}'")
    yield ok("packages", ", ".join(f"{name} {version}" for name, version in installed.items()))


def check_java() -> Finding:
    """Find the Java that Spark would use, and its version."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    version = java_version(java) if java else None
    if version is not None and version >= JAVA:
        return ok("java", f"Java {version} ({java})")
    message = (
        f"{java or 'java'} is Java {version}" if version else f"there is no working java ({java or home or 'PATH'})"
    )
    return error("java", message, f"Install Java {JAVA} or later, or set JAVA_HOME; the embedded engine needs none.")


def java_version(java: str) -> int | None:
    """Return the major version of a Java, None if Java does not start or does not print it."""
    try:
        completed = subprocess.run(  # noqa: S603 - the Java that Spark starts
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r'version "(?:1\.)?(\d+)', completed.stderr + completed.stdout)
    return int(number[1]) if number else None


def check_spark() -> Finding:
    """Start Spark, which downloads missing jars."""
    from windrow.engine.spark.session import local_session

    try:
        session = local_session("windrow-doctor", master="local[1]")
    except WindrowError as failed:
        return error("spark", failed.message, failed.hint)
    version = session.version
    session.stop()
    return ok("spark", f"Spark {version} starts, with Delta's jars")

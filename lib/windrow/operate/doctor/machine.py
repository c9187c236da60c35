"""Check the machine: Python, packages, Java and Delta's jars, without the network unless asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from platform import python_version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from windrow.engine import from_platform
from windrow.errors import WindrowError
from windrow.operate.doctor.finding import Finding, error, ok, warning

DISTRIBUTION = "windrow-delta"
JAVA = 17  # what Spark 4 asks for
IVY = (".ivy2.5.2", ".ivy2")  # where Spark's resolver keeps jars, from Spark 4 on and before
JAVA_TIMEOUT_SECONDS = 30  # a guess: java -version takes a tenth of a second


def check_machine(engine: str, network: bool) -> Iterator[Finding]:
    """Check the machine for the engine that will run; with `network`, start Spark, which may download its jars.

    A platform that provides Spark's session also has its packages, its Java and its jars.
    """
    yield check_python(python_version(), metadata.metadata(DISTRIBUTION)["Requires-Python"])
    if from_platform():
        yield from check_packages("embedded")
        return
    yield from check_packages(engine)
    java = check_java(engine)
    yield java
    if java.level == "ok" and _version("delta-spark"):
        yield check_jars(engine)
        if network:
            yield check_spark()


def check_python(version: str, supported: str) -> Finding:
    """Compare a version of Python with the supported ones, such as `>=3.11,<3.14`."""
    if SpecifierSet(supported).contains(version, prereleases=True):
        return ok("python", f"Python {version}")
    return error("python", f"Python {version} is not supported", f"Use Python {supported}.")


def check_packages(engine: str) -> Iterator[Finding]:
    """Compare the installed packages with what Windrow requires, and with what its extras need if they are there."""
    versions = {}
    for line in metadata.requires(DISTRIBUTION) or ():
        needed = Requirement(line)
        versions[needed.name] = version = _version(needed.name)
        required = any(_is_for(needed, extra) for extra in ("", "spark" if engine == "spark" else ""))
        install = f"pip install '{needed.name}{needed.specifier}'"
        if version is None and required:
            yield error("packages", f"{needed.name} is not installed", install)
        elif version is not None and not needed.specifier.contains(version, prereleases=True):
            what = f"{needed.name} {version} is outside the versions that Windrow works with"
            yield warning("packages", what, install)
    yield ok("packages", ", ".join(f"{name} {version}" for name, version in versions.items() if version))
    if missing := [name for name, version in versions.items() if version is None]:
        yield ok("packages", f"not installed, for optional functions: {', '.join(missing)}")


def _is_for(needed: Requirement, extra: str) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": extra})


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_java(engine: str) -> Finding:
    """Find the Java that Spark would use, and its version."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    todo = f"Install Java {JAVA} or later, or set JAVA_HOME; the embedded engine needs none."
    if java is None:
        what = f"there is no java {f'in JAVA_HOME ({home})' if home else 'on the path'}"
        return error("java", what, todo) if engine == "spark" else ok("java", f"{what}; the embedded engine needs none")
    version = java_version(java)
    if version is None:
        return warning("java", f"{java} does not say its version", todo)
    if version < JAVA:
        return Finding("error" if engine == "spark" else "warning", "java", f"{java} is Java {version}", todo)
    return ok("java", f"Java {version} ({java})")


def java_version(java: str) -> int | None:
    """Return the major version of a Java, None if it does not start or print it."""
    try:
        done = subprocess.run(  # noqa: S603 - the Java that Spark starts
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(number[1]) if number else None


def check_jars(engine: str) -> Finding:
    """Look for Delta's jars in the caches of Spark's resolver and among Spark's own jars."""
    import pyspark

    version = _version("delta-spark")
    places = [*(Path.home() / ivy for ivy in IVY), Path(os.environ.get("SPARK_HOME", pyspark.__path__[0]))]
    if jars := [jar for place in places for jar in (place / "jars").glob(f"*delta-spark_*{version}.jar")]:
        return ok("jars", f"Delta's jars {version} are in {jars[0].parent}")
    what = f"Delta's jars {version} are not here yet; Spark downloads them at its first start"
    todo = "Run `windrow doctor --network` once with a network connection, or copy them to Spark's own jars."
    return warning("jars", what, todo) if engine == "spark" else ok("jars", what)


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

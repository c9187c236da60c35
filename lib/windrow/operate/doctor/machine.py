"""Check the machine: Python, packages, Java, Delta's jars and memory, without the network unless asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from windrow.errors import WindrowError
from windrow.operate.doctor.finding import Finding, error, ok, warning

PYTHON = ((3, 11), (3, 14))  # from the first version on, below the second; a test compares it with pyproject.toml
# What an extra is for, in the order of the report.
USES = {
    "spark": "the Spark engine",
    "metrics": "metrics for Prometheus",
    "otel": "spans for OpenTelemetry",
    "plot": "pictures",
    "quality": "windrow check",
}
REQUIREMENT = (r"[\w-]+", r">=([\d.]+)", r"<([\d.]+)", r"extra == [\"'](\w+)")  # name, bounds, extra
JAVA = 17
GIBIBYTE = 1 << 30
ENOUGH = {"spark": 3 * GIBIBYTE, "embedded": GIBIBYTE}  # Spark's driver alone takes 2 GiB
IVY = (".ivy2.5.2", ".ivy2")
PATIENCE_SECONDS = 30


def check_machine(engine: str, network: bool) -> Iterator[Finding]:
    """Check the machine for the engine that will run; with `network`, start Spark, which may download its jars."""
    yield check_python(sys.version_info[:2])
    yield from check_packages()
    yield from check_extras(engine)
    java = check_java(engine)
    yield java
    if java.level == "ok" and _version("delta-spark"):
        yield check_jars(engine)
        if network:
            yield check_spark()
    yield from check_memory(engine, total_memory())


def check_python(version: tuple[int, ...]) -> Finding:
    """Compare the version of Python with the supported ones."""
    text = ".".join(map(str, version))
    if PYTHON[0] <= version < PYTHON[1]:
        return ok("python", f"Python {text}")
    first, below = (".".join(map(str, bound)) for bound in PYTHON)
    return error("python", f"Python {text} is not supported", f"Use Python {first} or later, below {below}.")


def check_packages() -> Iterator[Finding]:
    """Compare the versions of required packages with the supported ranges."""
    ranges = required("")
    found = {name: _version(name) for name in ranges}
    for name, version in found.items():
        if version is None:
            yield error("packages", f"{name} is not installed", f"pip install '{_range(name, ranges[name])}'")
    yield from _out_of_range(found, ranges)
    yield ok("packages", ", ".join(f"{name} {version}" for name, version in found.items() if version))


def check_extras(engine: str) -> Iterator[Finding]:
    """Report which extras are installed, and which one the engine lacks."""
    for extra, use in USES.items():
        ranges = required(extra)
        found = {name: _version(name) for name in ranges}
        missing = [name for name, version in found.items() if version is None]
        yield from _out_of_range(found, ranges)
        if not missing:
            yield ok("extras", f"{extra}: " + ", ".join(f"{name} {version}" for name, version in found.items()))
        elif extra == "spark" == engine:
            yield error(
                "extras", f"{', '.join(missing)} is missing: no Spark engine", "pip install 'windrow-delta[spark]'"
            )
        else:
            yield ok("extras", f"{extra} is not installed, for {use}: pip install 'windrow-delta[{extra}]'")


def required(extra: str) -> dict[str, tuple[str, str]]:
    """Return the packages that Windrow requires, or that an `extra` adds, each with its first version and the bound.

    The bound is the version below which Windrow works with it, empty for none. The installed Windrow says all of it.
    """
    found = {}
    for line in sorted(metadata.requires("windrow-delta") or ()):
        name, first, below, of = (re.search(pattern, line) for pattern in REQUIREMENT)
        if name and (of[1] if of else "") == extra:
            found[name[0]] = (first[1] if first else "", below[1] if below else "")
    return dict(sorted(found.items()))


def check_java(engine: str) -> Finding:
    """Find the Java that Spark would use, and its version."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    todo = f"Install Java {JAVA} or later, or set JAVA_HOME; the embedded engine needs none."
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the path"
        what = f"there is no java {where}"
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
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)  # noqa: S603 - the Java that Spark starts
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else None


def check_jars(engine: str) -> Finding:
    """Look for Delta's jars in the caches of Spark's resolver and among Spark's own jars."""
    version = _version("delta-spark")
    found = [jar for folder in jar_folders() for jar in folder.glob(f"*delta-spark_*{version}.jar")]
    if found:
        return ok("jars", f"Delta's jars {version} are in {found[0].parent}")
    what = f"Delta's jars {version} are not here yet; Spark downloads them at its first start"
    todo = "Run `windrow doctor --network` once with a network connection, or copy them to Spark's own jars."
    return warning("jars", what, todo) if engine == "spark" else ok("jars", what)


def jar_folders() -> list[Path]:
    """Return the folders that may hold jars: the resolver's caches and Spark's own."""
    home = os.environ.get("SPARK_HOME")
    folders = [place / ivy / "jars" for place in _homes() for ivy in IVY] + ([Path(home) / "jars"] if home else [])
    try:
        import pyspark
    except ImportError:
        return folders
    return [*folders, *(Path(place) / "jars" for place in pyspark.__path__)]


def _homes() -> list[Path]:
    """Return the home directory, and the user's own, which Java uses whatever HOME says."""
    try:
        import pwd

        return [Path.home(), Path(pwd.getpwuid(os.getuid()).pw_dir)]
    except (ImportError, KeyError):  # not Unix, or an unknown user
        return [Path.home()]


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


def check_memory(engine: str, total: int | None) -> Iterator[Finding]:
    """Compare the memory that this process may use with what the engine needs."""
    if total is None:
        return
    has = f"{total / GIBIBYTE:.1f} GiB of memory"
    if total >= ENOUGH[engine]:
        yield ok("memory", has)
    else:
        needs = f"{ENOUGH[engine] // GIBIBYTE} GiB"
        todo = "Use the embedded engine, or a larger machine." if engine == "spark" else "Lower max_messages."
        yield warning("memory", f"{has}; the {engine} engine needs {needs}", todo)


def total_memory() -> int | None:
    """Return the memory of the machine, or the lower limit of its container, in bytes; None if unknown."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        return min(whole, int(limit)) if limit.isdigit() else whole
    return whole


def within(version: str, bounds: tuple[str, str]) -> bool:
    """Tell whether a version is in a range; an empty upper bound means no limit."""
    first, below = bounds
    return _numbers(first) <= _numbers(version) and (not below or _numbers(version) < _numbers(below))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; `2.0.0rc1` counts as `2.0.0`."""
    begin = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, begin[0].split("."))) if begin else ()


def _out_of_range(found: Mapping[str, str | None], ranges: Mapping[str, tuple[str, str]]) -> Iterator[Finding]:
    """Warn about each installed package whose version is not in its range."""
    for name, version in found.items():
        if version is not None and not within(version, ranges[name]):
            what = f"{name} {version} is outside the versions that Windrow works with"
            yield warning("packages", what, f"pip install '{_range(name, ranges[name])}'")


def _range(name: str, bounds: tuple[str, str]) -> str:
    return f"{name}>={bounds[0]}" + (f",<{bounds[1]}" if bounds[1] else "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

"""Where something was measured: numbers of another machine, or of other versions, are other numbers."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyarrow as pa

PACKAGES = ("windrow-delta", "pyspark", "delta-spark", "deltalake", "pyarrow", "numpy", "numba")


def facts() -> dict[str, object]:
    """Return the machine, the versions and the date."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu": cpu(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java(),
        "arrow_memory": pa.default_memory_pool().backend_name,
        "java_options": os.environ.get("JAVA_TOOL_OPTIONS", ""),
        "packages": {name: installed(name) for name in PACKAGES},
    }


def cpu() -> str:
    """Return the model of the processor as the system names it."""
    listed = Path("/proc/cpuinfo")
    text = listed.read_text(encoding="utf-8") if listed.exists() else ""
    named = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def java() -> str | None:
    """Return the version of the Java that Spark would start, None without one."""
    home = os.environ.get("JAVA_HOME")
    try:
        result = subprocess.run(
            [f"{home}/bin/java" if home else "java", "-version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r'version "([^"]+)"', result.stderr)
    return match[1] if match else None


def installed(package: str) -> str | None:
    """Return the version of a package, None when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

"""Locations of tables: a path, or the name of a table in a catalog.

A name has two or three parts, `schema.table` or `catalog.schema.table`, each a word or anything in backticks. Anything
else is a path. `readings.v2` is a name, `./readings.v2` is a path.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from windrow.errors import SettingsError

_PART = r"(?:[^\W\d]\w*|`(?:[^`]|``)+`)"
_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:/")
# In a path, Delta's readers misread these characters, or crash.
_UNSAFE = re.compile(r"[#?\[\]\\^|\x00-\x1f]|%[0-9A-Fa-f]{2}")
_NAME = re.compile(rf"{_PART}(?:\.{_PART}){{1,2}}")


def is_catalog_name(location: str) -> bool:
    """Tell whether a location is the name of a catalog table."""
    return _NAME.fullmatch(location) is not None


def parts(name: str) -> list[str]:
    """Return the parts of a catalog name, without backticks."""
    return [part[1:-1].replace("``", "`") if part.startswith("`") else part for part in re.findall(_PART, name)]


def quote_name(*names: str) -> str:
    """Return names as an SQL identifier of several parts."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def reference(location: str) -> str:
    """Return the SQL reference of a table: its quoted name, or ``delta.`path` `` as `for_spark` writes the path."""
    return quote_name(*parts(location)) if is_catalog_name(location) else f"delta.{quote_name(for_spark(location))}"


def local_path(location: str) -> Path | None:
    """Return the path of a table on a local file system; None for other storage and for catalog names."""
    if location.startswith("file://"):  # a URI, as delta-rs names a table
        return Path(unquote(location.removeprefix("file:")))
    if location.startswith("file:"):
        return Path(location.removeprefix("file:"))
    return None if _SCHEME.match(location) or is_catalog_name(location) else Path(location)


def require_safe(role: str, location: str) -> None:
    """Raise SettingsError for a local path that Delta's readers would misread; `role` says what is there."""
    path = local_path(location)
    # guard: unsafe-path
    if path is not None and _UNSAFE.search(str(path.resolve())):
        raise SettingsError(
            f"{role} = {location!r}: the path has characters that Delta's readers misread",
            "Use a path without # ? [ ] ^ |, backslashes, control characters, and escapes such as %20.",
        )


def absolute(location: str) -> str:
    """Return a local path as an absolute path; other locations are unchanged."""
    path = local_path(location)
    return location if path is None else str(path.resolve())


def for_spark(location: str) -> str:
    """Return a location as `absolute` does, but keep `file:`, without which Spark may use another file system."""
    return f"file:{absolute(location)}" if location.startswith("file:") else absolute(location)

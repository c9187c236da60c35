"""Remember the paths of catalog tables, for commands that cannot ask the catalog.

`windrow init` and `windrow run` ask Spark for the paths and write them to `.windrow/paths.json` beside `windrow.toml`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from windrow.delta.locations import is_catalog_name
from windrow.errors import TableMissingError

FILE = Path(".windrow") / "paths.json"
# What to do with a table whose files only Spark can reach.
READ = "`status`, `show`, `verify`, `export`, `plot`, `tune`, `replay` and `amend` read it with --engine spark"
PRODUCE = (
    "Spark appends to it, from a stream of yours in `windrow.foreach_batch` or with INSERT, and `windrow ingest` "
    "appends Parquet files and Delta tables that Spark can read; producers and bridges need a depot with a path"
)
INGEST_RAW = "raw files need a depot with a path, such as one in an external location; or read them with Spark"


@dataclass(frozen=True, slots=True)
class TablePathCache:
    """The paths of tables by their names, in one file."""

    file: Path

    @classmethod
    def beside(cls, config: str | None) -> TablePathCache:
        """Return the file next to a settings file, or in the working directory."""
        return cls((Path(config).parent if config else Path()) / FILE)

    def path(self, location: str, instead: str = READ, by_platform: bool = False) -> str:
        """Return the path of a table; a path is returned unchanged. Raises TableMissingError for an unknown name.

        Its hint says what to do `instead` if only Spark reaches the files, as on a platform that provides the session.
        """
        if not is_catalog_name(location):
            return location
        known = self._read().get(location)
        if known is None and by_platform:
            only_spark = f"only Spark reaches the files of the catalog table {location}"
            raise TableMissingError(only_spark, f"{instead[0].upper()}{instead[1:]}.")
        if known is None:
            raise TableMissingError(
                f"{self.file} has no path for the catalog table {location}",
                "`windrow init` or `windrow run` with Spark adds it; or give the path of the table "
                f"(./{location} for a path of this name). A table that a catalog manages has none: {instead}.",
            )
        return known

    def note(self, location: str, path: str | None) -> None:
        """Record the path of a catalog table; does nothing for a path, or for a table that does not exist."""
        known = self._read()
        if path is None or not is_catalog_name(location) or known.get(location) == path:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(known | {location: path}, indent=2, ensure_ascii=False, sort_keys=True)
        new = self.file.with_suffix(".new")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(self.file)

    def _read(self) -> dict[str, str]:
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(name): str(path) for name, path in content.items()} if isinstance(content, dict) else {}

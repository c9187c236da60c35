"""The record of the last verification: a JSON file that says what was verified, and when."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from windrow.errors import OutputFileError, first_line
from windrow.verify.report import Report, VerifiedRange

TYPES = {"str": str, "int": int}


@dataclass(frozen=True, slots=True)
class Record:
    """What was verified, and at which time (ISO 8601)."""

    verified: VerifiedRange
    verified_at: str

    @classmethod
    def read(cls, path: str) -> Record | None:
        """Read a record, None if there is no such file. Raises ValueError for a file that is no whole record."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            moment = document.pop("verified_at")
            datetime.fromisoformat(moment)
            # guard: whole-record
            _require_values(document)
            return cls(VerifiedRange(**document), moment)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is not a whole record of a verification ({first_line(error)})") from error

    def write(self, path: str) -> None:
        """Replace the file by this record at once. Raises OutputFileError."""
        text = json.dumps(asdict(self.verified) | {"verified_at": self.verified_at}, indent=2)
        new = Path(f"{path}.{os.getpid()}.new")
        try:
            with new.open("w", encoding="utf-8") as opened:
                opened.write(text + "\n")
                opened.flush()
                os.fsync(opened.fileno())
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise OutputFileError(
                f"[verify] record = {path!r} cannot be written: {first_line(error)}",
                "The report stands. Name a file in a directory that exists and can be written.",
            ) from error


def write_record(report: Report, path: str, now: datetime) -> bool:
    """Write the record of a report without differences and findings; tell whether it was.

    One that relies on a version of which there was no record is not remembered. Raises OutputFileError.
    """
    is_founded = report.since is None or report.since.verified_at is not None
    # guard: only-verified-is-remembered
    if not (report.ok and report.complete and is_founded) or report.verified is None:
        return False
    Record(report.verified, now.isoformat(timespec="seconds")).write(path)
    return True


def _require_values(document: dict[str, Any]) -> None:
    """Raise ValueError if a value is missing or of another type."""
    for field in fields(VerifiedRange):
        if type(document.get(field.name)) is not TYPES[str(field.type)]:
            raise ValueError(f"no {field.name}")

"""What the terminal shows, row by row and how far it is, and the JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from benchmarks.row import Measurement

WIDTHS = {"what": 46, "against": 34, "ours": 11, "theirs": 11, "ratio": 12, "aim": 8, "met": 3}
CLEARED = "\r\x1b[K"
PAUSE = 30.0  # seconds


def head() -> str:
    """Return the line above the rows."""
    return _aligned(WIDTHS)


def line(row: Measurement) -> str:
    """Return a row as a line."""
    return _aligned(
        (
            row.what,
            row.against,
            value(row.ours, row.unit),
            value(row.theirs, row.unit),
            value(row.ratio, row.of),
            str(row.aim or ""),
            {None: "", True: "yes", False: "no"}[row.met],
        )
    )


def value(number: float | None, unit: str) -> str:
    """Return a number with three digits that mean something, and its unit; nothing for None."""
    if number is None:
        return ""
    digits = next((digits for least, digits in ((100, 0), (10, 1), (1, 2)) if abs(number) >= least), 3)
    return f"{number:,.{digits}f} {unit}"


def document(facts: Mapping[str, Any], rows: Iterable[tuple[str, Measurement]]) -> dict[str, Any]:
    """Return everything that was measured, on which machine, each row with the name of its benchmark."""
    return {**facts, "rows": [{"benchmark": name, **asdict(row), "met": row.met} for name, row in rows]}


def write(file: Path, facts: Mapping[str, Any], rows: Iterable[tuple[str, Measurement]]) -> None:
    """Write the JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document(facts, rows), indent=2) + "\n", encoding="utf-8")


class Terminal:
    """Prints the table as it grows, and on standard error what is done now.

    On a terminal that is one line that changes; elsewhere, as in a log, it is a line twice a minute at most.
    """

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._changes = sys.stderr.isatty()
        self._said_at = -PAUSE

    def say(self, text: str) -> None:
        """Print a line of the table."""
        if self._changes:
            _write(sys.stderr, CLEARED)
        _write(sys.stdout, f"{text}\n")

    def tell(self, text: str) -> None:
        """Say what is done now."""
        if self._changes:
            _write(sys.stderr, f"{CLEARED}{text}")
        elif time.monotonic() >= self._said_at + PAUSE:
            self._said_at = time.monotonic()
            _write(sys.stderr, f"{text}\n")


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _aligned(cells: Iterable[str]) -> str:
    texts = ("what", "against")
    aligned = (
        f"{cell:<{width}}" if name in texts else f"{cell:>{width}}"
        for cell, (name, width) in zip(cells, WIDTHS.items(), strict=True)
    )
    return "  ".join(aligned).rstrip()

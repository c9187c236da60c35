"""Compile what most tests call: `python -m tests.warm batching` or `formats`; conftest.py says when."""

from __future__ import annotations

import sys

import windrow
from tests.formats.test_kit import CASES
from tests.messages import log, table
from windrow.testing import check_format


def batching() -> None:
    """Batch a log with all that happens to messages."""
    windrow.batch(table(log(versions=1)[0]), windrow.Rules())


def formats() -> None:
    """Read records of the formats of which each compiles code of its own."""
    for name in ("json", "csv", "native", "messagepack"):
        check_format(**CASES[name])


if __name__ == "__main__":
    {"batching": batching, "formats": formats}[sys.argv[1]]()

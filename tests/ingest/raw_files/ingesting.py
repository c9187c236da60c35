"""Ingests raw files in a process of its own: `python -m tests.ingest.raw_files.ingesting ORDER`, where ORDER is JSON.

`settings`: those of `ingest`. `stop_at`: say `reached` behind so many bytes, and wait for a line. The last line tells
what became of the files, and the most memory it ever had, in bytes.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict
from typing import Any

from tests.clocks import NOW
from windrow.errors import WindrowError
from windrow.ingest.raw_files import ingest


def main() -> None:
    """Ingest, and print what became of it as one line of JSON."""
    order = json.loads(sys.argv[1])
    stop_at = order.get("stop_at")

    def progress(bytes_read: int, total: int | None) -> None:
        nonlocal stop_at
        if stop_at is not None and bytes_read >= stop_at:
            stop_at = None
            say("reached")
            sys.stdin.readline()

    outcome: dict[str, Any] = {}
    try:
        results = ingest(order["depot"], order["files"], lambda: NOW, progress=progress, **order.get("settings", {}))
        outcome["files"] = [asdict(result) for result in results]
        outcome["known"] = [file["already_ingested"] for file in outcome["files"]]
    except WindrowError as error:
        outcome["error"] = error.code
    outcome["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    say(json.dumps(outcome))


def say(line: str) -> None:
    """Tell the test at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""A driver in a process of its own (`driver.py`), as a test sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from select import select
from typing import Any

from tests.conftest import FAST_JAVA
from tests.stores.bucket import Bucket

ROOT = Path(__file__).parents[2]


class SparkDriver:
    """A driver in a process of its own (`driver.py`), with the local session that Windrow starts for S3."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.driver"],
            cwd=ROOT,
            env=dict([FAST_JAVA]) | os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def do(self, bucket: Bucket, what: str, now: int | None = None, **settings: Any) -> Any:
        """Have an order carried out, and return the answer."""
        self.begin(bucket, what, now, **settings)
        return self.answer()

    def begin(self, bucket: Bucket, what: str, now: int | None = None, **settings: Any) -> None:
        """Give an order."""
        values = {"depot": bucket.depot, "ledger": bucket.ledger, "engine": "spark", "idle_timeout": "never"} | settings
        order = {"do": what, "settings": values, "now": bucket.clock.now() if now is None else now}
        self._process.stdin.write(f"{json.dumps(order)}\n")

    def answer(self) -> Any:
        """Return the next answer."""
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise EOFError("the driver ended")

    def answers_so_far(self) -> list[Any]:
        """Return the next answer if there is one already."""
        return [self.answer()] if select([self._process.stdout], [], [], 0)[0] else []

    def close(self) -> None:
        """End the process; its JVM ends with it."""
        with self._process.stdin, self._process.stdout:
            self._process.stdin.close()
            self._process.wait(60)

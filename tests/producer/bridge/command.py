"""`windrow bridge mqtt` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.producer.bridge.broker import PATIENCE_SECONDS, until


class Process:
    """A bridge as a service runs it; its log goes into a file."""

    def __init__(self, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._log = folder / "bridge.log"
        self._out = folder / "bridge.json"
        with self._log.open("w") as log, self._out.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "windrow", "bridge", "mqtt", "--json", "--log-level", "debug", *arguments],
                cwd=folder,
                env=os.environ | (environment or {}),
                stdout=out,
                stderr=log,
            )

    @property
    def log(self) -> str:
        """Return what it has said so far."""
        return self._log.read_text()

    def await_connection(self, times: int = 1) -> None:
        """Wait until it has subscribed, for the first time or again."""

        def come() -> bool:
            return self.log.count('"connected"') >= times or self._process.poll() is not None

        until(come, "the bridge is connected")
        assert self._process.poll() is None, self.log

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def status(self) -> int:
        """Wait until it ends by itself, and return its exit status."""
        return self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> dict[str, Any]:
        """End it gently, and return what it says it did."""
        self._process.send_signal(signal.SIGTERM)
        assert self.status() == 0, self.log
        summary: dict[str, Any] = json.loads(self._out.read_text())
        return summary

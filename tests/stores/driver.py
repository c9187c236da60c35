"""A driver in a process of its own, with the local Spark session that Windrow starts for tables on S3.

It carries out the orders that it reads, one a line, and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.clocks import ManualClock
from tests.probes import Tables, open_tables, runner_on
from tests.stores.seaweed import files_at
from windrow.errors import WindrowError
from windrow.runtime.loop import Runner
from windrow.runtime.maintenance import maintain
from windrow.settings.settings import Settings


class Orders:
    """What a driver can be told to do; its tables stay open."""

    def __init__(self) -> None:
        self._tables: dict[str, Tables] = {}
        self._runs: dict[str, tuple[ManualClock, Runner]] = {}

    def run(self, settings: Settings, now: int) -> int:
        """Run to the end of the depot, and return the number of microbatches."""
        return len(runner_on(self._open(settings), ManualClock(now)).once().microbatches)

    def round(self, settings: Settings, now: int) -> int:
        """Do the next round of a run that goes on, and return the number of microbatches so far."""
        key = settings.model_dump_json()
        if key not in self._runs:
            clock = ManualClock(now)
            self._runs[key] = clock, runner_on(self._open(settings), clock)
        clock, runner = self._runs[key]
        clock.set(now)
        return len(runner.once().microbatches)

    def maintain(self, settings: Settings, now: int) -> int:
        """Maintain both tables, and return how many files were removed."""
        tables = self._open(settings)
        results = maintain([tables.source], tables.ledger, now)
        return sum(result.files_deleted for result in results)

    def append(self, settings: Settings, now: int) -> int:
        """Append to the depot one row a commit for `now` milliseconds; return how many succeeded."""
        session, count, end = self._open(settings).engine.session_at_work, 0, time.monotonic() + now / 1_000
        while time.monotonic() < end:
            row = session.sql(f"SELECT 'spark' AS who, {count}L AS number")
            row.write.format("delta").mode("append").save(settings.depot)
            count += 1
        return count

    def conflict(self, settings: Settings, now: int) -> str:
        """Write a log entry of the depot that another writer writes first, and return the name of the error."""
        session = self._open(settings).engine.session_at_work
        jvm, entry = session._jvm, f"_delta_log/{10**19}.json"
        files, place = files_at(os.environ["AWS_ENDPOINT_URL"]), settings.depot.removeprefix("s3a://")
        pipe = jvm.java.io.PipedOutputStream()
        lines = jvm.java.util.Scanner(jvm.java.io.PipedInputStream(pipe)).useDelimiter("\n")
        hadoop = session._jsc.hadoopConfiguration()
        store = jvm.windrow.ConditionalLogStore(hadoop)
        path = jvm.org.apache.hadoop.fs.Path(f"{settings.depot}/{entry}")
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(store.write, path, lines, False, hadoop)
            try:
                pipe.write(bytearray(b"ours\n"))
                pipe.flush()
                time.sleep(3)  # the log store has begun the entry, and waits for the next line
                with files.open_output_stream(f"{place}/{entry}") as other:
                    other.write(b"theirs")
            finally:
                pipe.close()
            error = writing.exception()
        with files.open_input_file(f"{place}/{entry}") as left:
            return f"{left.read().decode()} {error.java_exception.getClass().getName() if error else ''}"

    def _open(self, settings: Settings) -> Tables:
        key = settings.model_dump_json()
        if key not in self._tables:
            self._tables[key] = open_tables(settings)
        return self._tables[key]


def main() -> None:
    """Answer orders until there are no more."""
    orders = Orders()
    answer("ready")
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer(getattr(orders, order["do"])(Settings(**order["settings"]), order["now"]))
        except WindrowError as error:
            answer({"code": error.code, "message": error.message, "hint": error.hint})


def answer(result: Any) -> None:
    """Print one line."""
    sys.stdout.write(f"answer {json.dumps(result)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

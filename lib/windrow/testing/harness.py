"""Run a topology in tests: real tables in a directory, a manual clock, and crashes at chosen points.

```python
def test_words(tmp_path):
    harness = Harness(topology, tmp_path)
    harness.append([{"payload": "to be or not to be"}])
    harness.crash_at(Point.BEFORE_COMMIT)
    with pytest.raises(DriverCrash):
        harness.run()
    harness.restart()
    harness.run()
    assert harness.state("counts") == [{"word": "be", "count": 2}, ...]
```

Nothing is mocked: depots and states are Delta tables, and a microbatch is one commit. Source of the idea: the
in-process cluster of Rama.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from windrow.columnar.arrow import to_plain_types
from windrow.delta.creation import create_depot
from windrow.errors import NotFoundError
from windrow.model import messages, tables
from windrow.runtime.driver import RunSummary
from windrow.runtime.loop import Runner
from windrow.settings.settings import Settings
from windrow.testing.clock import ManualClock
from windrow.testing.points import Point, ProbedAlgorithm, ProbedLedger, ProbedSource
from windrow.topology import Topology
from windrow.topology.functions import FunctionAlgorithm
from windrow.topology.reading import history_rows
from windrow.topology.running import rollback, runner_of, set_option, tables_of
from windrow.topology.states_table import states_table

SECOND = 1_000_000
Row = Mapping[str, Any]


class DriverCrash(Exception):
    """The driver crashed where a test asked for it. Uncommitted work is lost, and nothing is retried."""

    retryable: ClassVar[bool] = False


class Harness:
    """A topology with its depots and states in a directory, which the topologies of a chain share.

    The locations in the topology are not used, except that a topology finds another's states by the last part.
    `engine` is `embedded` or, with a `session`, `spark`; `settings` are those of `windrow.toml`. Failed microbatches
    are not retried unless `max_retries` is set, and after a crash never.
    """

    def __init__(
        self,
        topology: Topology,
        directory: Path | str,
        engine: str = "embedded",
        session: Any = None,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        """Prepare the topology; nothing runs yet. The `clock` stands at the current time unless one is given."""
        self.directory, self.clock = Path(directory), clock or ManualClock(time.time_ns() // 1_000)
        self.topology = self._place_topology(topology)
        self._settings = Settings(**({"engine": engine, "max_retries": 0} | settings))
        self._session = session
        self._crash: Point | None = None
        self._runner: Runner | None = None

    def append(self, rows: Iterable[Row] | pa.Table, depot: str | None = None) -> int:
        """Append rows to a depot (default: the first) in one version, and return it; missing columns are NULL.

        Messages may have only a `payload`: source, key and type default to `test`, the times to the clock's. A table,
        and rows for a depot made by `create`, are appended unchanged.
        """
        location = self._location(depot)
        table = rows if isinstance(rows, pa.Table) else None
        if table is None:
            if not DeltaTable.is_deltatable(location):
                create_depot(location, pa.string())
            schema = to_plain_types(pa.schema(DeltaTable(location).schema().to_arrow()).empty_table()).schema
            of_messages = set(messages.COLUMNS) <= set(schema.names)
            now = datetime.fromtimestamp(self.clock.now() / SECOND, UTC)
            message = {"source": "test", "key": "test", "type": "test", "event_time": now, "received_at": now}
            filled = [(message if of_messages else {}) | dict(row) for row in rows]
            table = pa.Table.from_pylist(filled, schema)
        write_deltalake(location, table, mode="append", configuration={"delta.enableChangeDataFeed": "true"})
        return DeltaTable(location).version()

    def create(self, columns: pa.Schema, depot: str | None = None) -> None:
        """Create a depot whose rows are not messages."""
        DeltaTable.create(self._location(depot), columns, configuration={"delta.enableChangeDataFeed": "true"})

    def run(self) -> RunSummary:
        """Process what is new, as `windrow run` does. Raises DriverCrash at the point given to `crash_at`."""
        return self.runner().once()

    def runner(self) -> Runner:
        """Return the runner of the topology, for anything the harness does not offer."""
        if self._runner is None:
            for depot in self.topology.depots.values():
                if depot.state is None and not DeltaTable.is_deltatable(depot.location):
                    create_depot(depot.location, pa.string())
            sources, opened = tables_of(self.topology, self._settings, self._session)
            ledger: Any = ProbedLedger(opened, self._at)
            probed: Any = {name: ProbedSource(source, ledger) for name, source in sources.items()}
            algorithm = ProbedAlgorithm(FunctionAlgorithm(self.topology, probed, ledger), self._at)
            self._runner = runner_of(self.topology, probed, ledger, self.clock, algorithm)
        return self._runner

    def wait_processed(self, messages: int, timeout: float = 60) -> None:
        """Run until this many messages were processed in all. Raises NotFoundError after `timeout` seconds."""
        until = time.monotonic() + timeout
        while True:
            self.run()
            processed = sum(row["messages_read"] or 0 for row in self.history())
            if processed >= messages:
                return
            if time.monotonic() > until:
                late = f"{processed} of {messages} messages were processed in {timeout:g} seconds"
                raise NotFoundError(late, "Append more, or wait.")
            time.sleep(0.05)

    def pause(self) -> None:
        """Pause the topology, as `windrow pause` does."""
        self.runner().pause()

    def resume(self) -> None:
        """Resume the topology, as `windrow resume` does."""
        self.runner().resume()

    def set_option(self, name: str, value: str) -> None:
        """Set an option, as `windrow settings` does."""
        set_option(self.runner(), name, value)

    def rollback(self, to: int) -> None:
        """Restore the states to a microbatch, as `windrow rollback` does."""
        rollback(self.runner(), to)

    def advance_clock(self, seconds: float) -> None:
        """Move the clock forward; events fire by it."""
        self.clock.advance(int(seconds * SECOND))

    def crash_at(self, point: Point) -> None:
        """Crash once, when the next microbatch reaches a point."""
        self._crash = point

    def restart(self) -> None:
        """Forget everything in memory: the next run opens the tables again, as a new process would."""
        self._runner = None

    def state(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a state, in the order of their keys."""
        self._require_run()
        return [dict(row) for row in self.topology.read(name).to_pylist()]

    def history(self) -> list[dict[str, Any]]:
        """Return the history rows in order."""
        columns = [name for name, _ in (*tables.HISTORY, *tables.TOPOLOGY_FIELDS)]
        self._require_run()
        return [dict(row) for row in history_rows(states_table(self.topology.location), columns).to_pylist()]

    def _require_run(self) -> None:
        if not DeltaTable.is_deltatable(self.topology.location):
            raise NotFoundError("there are no states, because nothing has run yet", "Call `run` first.")

    def _place_topology(self, topology: Topology) -> Topology:
        depots = {}
        for name, depot in topology.depots.items():
            fed_by = None if depot.fed_by is None else self._place_topology(depot.fed_by)
            location = str(self.directory / name) if depot.state is None else self._states(depot.location)
            depots[name] = replace(depot, location=location, fed_by=fed_by)
        outputs = {name: str(self.directory / name) for name in topology.outputs}
        return topology.with_locations(depots, self._states(topology.location), outputs)

    def _at(self, point: Point) -> None:
        if point is self._crash:
            self._crash = None
            raise DriverCrash(f"the driver crashed at {point.value}, as the test asked")

    def _location(self, depot: str | None) -> str:
        name = depot or next(iter(self.topology.depots))
        if name not in self.topology.depots:
            raise NotFoundError(f"there is no depot {name!r}", f"The depots are {', '.join(self.topology.depots)}.")
        return str(self.topology.depots[name].location)

    def _states(self, location: str) -> str:
        return str(self.directory / f"states-of-{Path(location).name}")

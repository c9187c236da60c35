"""Events for OpenLineage name the depot version that was read and the ledger version that has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from openlineage.client import OpenLineageClient
from openlineage.client.serde import Serde
from openlineage.client.transport import Config, Transport

import windrow
from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import log
from tests.operate.conftest import watch
from windrow.errors import EngineUnavailableError
from windrow.operate import RunInfo, configured_observers, notify_observers
from windrow.operate.lineage import LineageEvents
from windrow.settings.settings import Settings
from windrow.topology import Microbatch, Topology, run_topology

Event = dict[str, Any]


class Recorder(Transport):
    """Keeps what is sent, as the JSON that a server would get."""

    kind = "recorder"
    config_class = Config

    def __init__(self) -> None:
        self.sent: list[Event] = []

    def emit(self, event: Any) -> None:
        """Keep an event."""
        self.sent.append(json.loads(Serde.to_json(event)))


@pytest.fixture
def recorder() -> Recorder:
    """A server that has got nothing yet."""
    return Recorder()


def versions(event: Event) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Return the versions of the inputs and of the outputs of an event by the names of the tables."""

    def of(datasets: list[Event]) -> dict[str, str | None]:
        return {dataset["name"]: dataset["facets"].get("version", {}).get("datasetVersion") for dataset in datasets}

    return of(event["inputs"]), of(event["outputs"])


class TestVersions:
    def test_each_microbatch(self, world: World, embedded: EngineFactory, recorder: Recorder) -> None:
        """Each microbatch has an event with the depot version that it reached, the rows that it read and the ledger
        version of its commit, all in one run that starts and completes.
        """
        world.publish(*log(versions=3))
        watch(world, embedded, [LineageEvents(OpenLineageClient(transport=recorder))], max_messages=30)
        events, history = recorder.sent, world.history()
        assert len(history) > 1
        assert [event["eventType"] for event in events] == ["START", *["RUNNING"] * len(history), "COMPLETE"]
        assert len({event["run"]["runId"] for event in events}) == 1
        commits = DeltaTable(world.ledger).history()
        notes = {
            json.loads(commit.get("userMetadata", "{}")).get("microbatch"): commit["version"] for commit in commits
        }
        for event, row in zip(events[1:-1], history, strict=True):
            read = {world.depot: str(row["depot_version"])}
            assert versions(event) == (read, {world.ledger: str(notes[row["microbatch"]])})
            [depot] = event["inputs"]
            assert depot["inputFacets"]["inputStatistics"]["rowCount"] == row["messages_read"]
        assert versions(events[0]) == ({world.depot: None}, {world.ledger: None})
        assert versions(events[-1]) == versions(events[-2])

    def test_after_other_commits(self, world: World, embedded: EngineFactory, recorder: Recorder) -> None:
        """A commit between the microbatch and its event does not pass for the microbatch."""
        world.publish(*log(versions=1))
        observer = LineageEvents(OpenLineageClient(transport=recorder))
        watch(world, embedded, [observer])
        [running] = [event for event in recorder.sent if event["eventType"] == "RUNNING"]
        [reached] = versions(running)[1].values()
        DeltaTable(world.ledger).optimize.compact()
        assert observer._ledger_version(1) == int(reached or -1)

    def test_depots_of_a_topology(self, tmp_path: Path, recorder: Recorder) -> None:
        """Each depot of a topology has the version that its microbatch reached."""
        depots = {name: str(tmp_path / name) for name in ("pairs", "numbers")}
        for number, depot in enumerate(depots.values()):
            for _ in range(number + 1):
                write_deltalake(depot, pa.table({"number": [1]}), mode="append")
        topology = Topology("sums", depots=depots, states=str(tmp_path / "states"))
        topology.state("sum", value="total BIGINT", initial={"total": 0})

        @topology.function
        def add(microbatch: Microbatch) -> None:
            microbatch.state("sum").combine(microbatch.rows("numbers"), total=("number", "sum"))

        observer = LineageEvents(OpenLineageClient(transport=recorder))
        run_topology(topology, Settings(engine="embedded"), observers=[observer])
        states = topology.location
        assert versions(recorder.sent[-1])[0] == {depots["pairs"]: "0", depots["numbers"]: "1"}
        assert versions(recorder.sent[-1])[1].keys() == {states}


class TestEnd:
    @pytest.mark.parametrize(
        ("error", "state"),
        [(EngineUnavailableError("no s3://key:secret@bucket", "Wait."), "FAIL"), (KeyboardInterrupt(), "ABORT")],
    )
    def test_error(
        self, world: World, embedded: EngineFactory, recorder: Recorder, error: BaseException, state: str
    ) -> None:
        """An error fails the run, with its message but no secret; an interrupt aborts it."""
        run = RunInfo("embedded", world.settings(embedded), world.clock, {"": world.depot})
        with (
            pytest.raises(type(error)),
            notify_observers(run, [LineageEvents(OpenLineageClient(transport=recorder))]),
        ):
            raise error
        assert [event["eventType"] for event in recorder.sent] == ["START", state]
        message = recorder.sent[-1]["run"]["facets"]["errorMessage"]["message"]
        assert "secret" not in message


class TestNames:
    @pytest.mark.parametrize(
        ("location", "name"),
        [
            ("/srv/data/ledger", ("file", "/srv/data/ledger")),
            ("s3a://lake/silver/ledger", ("s3://lake", "silver/ledger")),
            ("abfss://c@account.dfs.example/ledger", ("abfss://c@account.dfs.example", "ledger")),
            ("main.`silver`.ledger", ("plant", "main.silver.ledger")),
        ],
    )
    def test_by_the_rules(self, clock: ManualClock, recorder: Recorder, location: str, name: tuple[str, str]) -> None:
        """A table has the name that OpenLineage's naming rules give it; one of a catalog is in the job's namespace."""
        run = RunInfo("spark", Settings(ledger=location), clock, {"": location})
        with notify_observers(run, [LineageEvents(OpenLineageClient(transport=recorder), "plant")]):
            pass
        [dataset] = recorder.sent[0]["inputs"]
        assert (dataset["namespace"], dataset["name"]) == name


class TestConfigured:
    def test_by_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> None:
        """With the setting a run sends its events where the environment says."""
        file = tmp_path / "events.jsonl"
        for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(file), "APPEND": "true"}.items():
            monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
        world.publish(*log(versions=1))
        settings = Settings(depot=world.depot, ledger=world.ledger, engine="embedded", metrics={"openlineage": True})
        windrow.run(settings, clock=world.clock)
        events = [json.loads(line) for line in file.read_text().splitlines()]
        assert [event["eventType"] for event in events] == ["START", "RUNNING", "COMPLETE"]
        assert versions(events[1])[0] == {world.depot: "1"}
        assert len(configured_observers(settings.metrics)) == 2

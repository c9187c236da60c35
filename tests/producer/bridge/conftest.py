"""A broker, a publisher and bridges in threads of the test."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import windrow
from tests.producer.bridge.broker import PATIENCE_SECONDS, Broker, Publisher, until
from tests.producer.conftest import Faults, Gate, faults, gate, messages
from windrow.producer.bridge.mqtt import MqttBridge
from windrow.producer.bridge.summary import MqttStats
from windrow.settings.producer import ProducerOptions
from windrow.settings.settings import Settings

__all__ = ["Faults", "Gate", "faults", "gate", "messages", "windrow"]
TOPIC = "plant/{key}/{type...}"


class Running:
    """A bridge in a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        self.counts = MqttStats("", "", "")
        self.error: BaseException | None = None
        self.summary: MqttStats | None = None
        self._bridge = MqttBridge(settings, self._note)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def until(self, condition: Callable[[MqttStats], bool], what: str) -> None:
        """Wait until the figures are so."""
        until(lambda: condition(self.counts) or not self._thread.is_alive(), what)
        assert self.error is None, self.error
        assert condition(self.counts), self.counts

    def ask_to_stop(self, seconds: float) -> None:
        """Ask it to stop gently, and give it some seconds."""
        self._bridge.stop()
        self._thread.join(seconds)

    def stop(self) -> MqttStats:
        """Stop it gently, and return what it did."""
        self.ask_to_stop(PATIENCE_SECONDS)
        assert self.summary is not None, self.error
        return self.summary

    def fails(self) -> BaseException:
        """Wait until it ends with an error, and return that."""
        self._thread.join(PATIENCE_SECONDS)
        assert self.error is not None
        return self.error

    def close(self) -> None:
        """End it, however it is."""
        self._bridge.stop()
        self._thread.join(PATIENCE_SECONDS)

    def _note(self, counts: MqttStats) -> None:
        self.counts = counts

    def _run(self) -> None:
        try:
            with self._bridge as bridge:
                self.summary = bridge.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error


Start = Callable[..., Running]


@pytest.fixture
def at_end() -> Iterator[ExitStack]:
    """What is to be ended, however the test goes; the broker is there until then."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that lets everybody in."""
    server = Broker(tmp_path / "broker")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def publisher(broker: Broker) -> Iterator[Publisher]:
    """A publisher of it."""
    client = Publisher(broker.port)
    yield client
    client.close()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Kafka broker of a process; each test makes topics of its own."""
    pytest.importorskip("confluent_kafka")
    if not shutil.which("java"):
        pytest.skip("a Kafka broker needs Java 17")
    from tests.producer.bridge.kafka_broker import KafkaBroker

    server = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def depot(tmp_path: Path) -> str:
    """A place for a depot."""
    return str(tmp_path / "depot")


def with_options(options: ProducerOptions) -> type[Settings]:
    """Return settings under which commands open producers with these options."""
    return type("SettingsWithOptions", (Settings,), {"producer_options": property(lambda self: options)})


@pytest.fixture
def start(broker: Broker, depot: str, tmp_path: Path) -> Iterator[Start]:
    """Start a bridge with settings of [mqtt], and `producer` as options of its producer."""
    started: list[Running] = []

    def bridge(into: str = depot, producer: dict[str, Any] | None = None, **chosen: Any) -> Running:
        kind = Settings if producer is None else with_options(ProducerOptions(**producer))
        mqtt_settings = {"broker": f"127.0.0.1:{broker.port}", "topics": [TOPIC]} | chosen
        settings = kind(depot=into, ledger=str(tmp_path / "ledger"), mqtt=mqtt_settings)
        started.append(Running(settings))
        return started[-1]

    yield bridge
    for running in started:
        running.close()

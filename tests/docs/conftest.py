from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import windrow  # noqa: F401 - a fixture
from tests.docs import worlds
from tests.producer.bridge.broker import Broker
from tests.producer.bridge.conftest import kafka  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a directory with a world, which is made when somebody first asks for it."""

    @cache
    def made(world: str) -> Path:
        directory = tmp_path_factory.mktemp(world)
        worlds.MADE[world](directory)
        return directory

    return made


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker that a bridge without settings finds."""
    server = Broker(tmp_path / "broker")
    server.start()
    monkeypatch.setenv("WINDROW_MQTT__BROKER", f"127.0.0.1:{server.port}")
    yield server
    server.stop()


@pytest.fixture
def kafka_topic(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: F811 - the fixture
    """A topic with a message, of a broker that a bridge without settings finds."""
    monkeypatch.setenv("WINDROW_KAFKA__BOOTSTRAP_SERVERS", kafka.place)
    kafka.publish(kafka.topic(name="readings"), "1")
    return "readings"

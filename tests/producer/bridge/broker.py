"""A real mosquitto on a port of its own, and a publisher. Both are Debian packages, or whatever the path has."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from paho.mqtt.client import Client, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

PACKAGES = {
    "mosquitto": ("mosquitto",),
    "mosquitto_passwd": ("mosquitto",),
    "collectd": ("collectd-core", "libmosquitto1"),
}
PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
POLICY = Path("/usr/sbin/policy-rc.d")
PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until something is there, and return it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def program(name: str) -> str:
    """Return where a program is; root installs one that is missing, others skip the test, but not in CI."""
    path = shutil.which(name, path=PLACES)
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(PACKAGES[name])
        path = shutil.which(name, path=PLACES)
    if path is None:
        missing = f"{name} is missing: apt-get install --no-install-recommends {' '.join(PACKAGES[name])}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return path


def _install(packages: Sequence[str]) -> None:
    """Install packages, one process at a time, without the services that Debian would start."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with FileLock("/tmp/windrow-tests-apt.lock"), _no_services():  # noqa: S108 - all processes of the tests share it
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", "-q", *arguments], env=environment, capture_output=True, check=False)


@contextmanager
def _no_services() -> Iterator[None]:
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Broker:
    """A broker that keeps everything for clients that are away, also when it is stopped and started again."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._program = program("mosquitto")
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(exist_ok=True)
        self._settings = folder / "mosquitto.conf"
        config_lines = [
            f"listener {self.port} 127.0.0.1",
            "persistence true",
            f"persistence_location {folder}/",
            "max_queued_messages 0",
            f"log_dest file {folder / 'mosquitto.log'}",
            *(["user root"] if os.geteuid() == 0 else []),
            *(lines or ["allow_anonymous true"]),
        ]
        self._settings.write_text("\n".join(config_lines) + "\n")

    @property
    def place(self) -> str:
        """Return where it listens, as `--broker` has it."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Return what it has written."""
        return (self._folder / "mosquitto.log").read_text()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen([self._program, "-c", str(self._settings)], stderr=subprocess.DEVNULL)
        until(self._listens, "the broker listens")

    def stop(self) -> None:
        """End it as a machine does that is shut down; it keeps what it has."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Read and answer nothing in a block, with all connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def forget(self) -> None:
        """Lose what it kept; it must be stopped."""
        (self._folder / "mosquitto.db").unlink()

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Publisher:
    """Publishes with QoS 1, and connects again by itself."""

    def __init__(self, port: int, set_up: Callable[[Client], object] = lambda client: None) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2, "publisher", protocol=MQTTProtocolVersion.MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        set_up(self._client)
        self._client.connect("127.0.0.1", port, clean_start=False)
        self._client.loop_start()

    def publish(self, topic: str, payload: bytes | str, qos: int = 1) -> MQTTMessageInfo:
        """Publish a message; it may still be on its way."""
        return self._client.publish(topic, payload, qos=qos)

    def publish_all(self, *messages: tuple[str, Any]) -> None:
        """Publish messages, and wait until the broker has them."""
        until(self._client.is_connected, "the publisher is connected")
        for delivery in [self.publish(topic, payload) for topic, payload in messages]:
            delivery.wait_for_publish(PATIENCE_SECONDS)
            assert delivery.is_published()

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


class Stream:
    """Numbered messages, published without an end until it is stopped; `payload_of` writes a number."""

    def __init__(self, publisher: Publisher, payload_of: Callable[[int], str] = str) -> None:
        self._publisher, self._payload_of = publisher, payload_of
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._sent: list[MQTTMessageInfo] = []
        self._thread.start()

    @property
    def published(self) -> set[str]:
        """Return what was published."""
        return set(map(self._payload_of, range(len(self._sent))))

    @property
    def taken(self) -> set[str]:
        """Return what the broker has acknowledged to the publisher."""
        sent = list(enumerate(self._sent))
        return {self._payload_of(number) for number, delivery in sent if not delivery.rc and delivery.is_published()}

    def stop(self) -> None:
        """Publish no more."""
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _publish(self) -> None:
        while not self._stop.is_set():
            for _ in range(10):
                number = len(self._sent)
                self._sent.append(self._publisher.publish(f"plant/pump-{number % 7}/level", self._payload_of(number)))
            last = self._sent[-1]
            while last.rc == 0 and not last.is_published() and not self._stop.wait(0.01):
                pass
            if last.rc:  # the broker is away
                self._stop.wait(0.1)

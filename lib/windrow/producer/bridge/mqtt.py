"""The loop of the bridge: receive messages, hand them to the producer, acknowledge committed ones, reconnect.

One thread does all of this and never waits for a commit: the producer's thread reports commits. So pings go out while
the depot hangs, and an acknowledgement can only go over the connection that brought the message.
"""

from __future__ import annotations

import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from types import TracebackType
from typing import Self

from windrow.delta.locations import absolute
from windrow.errors import first_line
from windrow.operate.log import log
from windrow.producer import Ack, Producer
from windrow.producer.bridge import times
from windrow.producer.bridge.mqtt_connection import TICK, Connection
from windrow.producer.bridge.mqtt_session import InFlightMessage, Session
from windrow.producer.bridge.mqtt_topics import Topics
from windrow.producer.bridge.reader import MqttReader
from windrow.producer.bridge.settings import payload_of
from windrow.producer.bridge.summary import BridgeLog, MqttStats
from windrow.settings.settings import Settings
from windrow.version import VERSION

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
Progress = Callable[[MqttStats], None]

# Guesses: a broker that restarts is back within seconds, and one that is down is asked once a minute.
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 60.0


class MqttBridge:
    """Copies messages from a broker to a depot until it is stopped or fails."""

    def __init__(self, settings: Settings, progress: Progress = lambda summary: None) -> None:
        """Read topics, times and secrets, and open the depot or create it.

        Raises SettingsError, IncompatibleTableError, TableUnreadableError, MissingExtraError.
        """
        mqtt = settings.mqtt
        topics, event_time = Topics.parse(mqtt.topics), times.reader(mqtt.event_time)
        self._mqtt, self._progress = mqtt, progress
        self._filters = topics.filters()
        self._connection = Connection(mqtt, self._filters, self._receive)
        self._producer = _producer(settings)
        limits = settings.producer_options
        self._room, self._largest = limits.max_buffer_bytes, limits.max_message_bytes
        self._reader = MqttReader(topics, event_time, self._producer.producer_id, self._producer.binary, self._largest)
        self._session, self._settled = Session(), deque[tuple[InFlightMessage, Future[Ack]]]()
        self._pause = PAUSE_SECONDS
        self._until: float | None = None
        self._stopped = self._draining = self._subscribed = False
        self._begun = time.monotonic()
        self._counts = MqttStats(self.broker, mqtt.client_id, settings.depot)
        self._lines = BridgeLog(self._counts, self._begun)
        self._woken, self._bell = socket.socketpair()
        for end in (self._woken, self._bell):
            end.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close the producer. It commits what it holds, unless the bridge failed."""
        try:
            self._producer.close(None if error is None else 0)
        finally:
            self._woken.close()
            self._bell.close()

    @property
    def broker(self) -> str:
        """Return the address of the broker."""
        host = self._connection.host
        return f"[{host}]:{self._connection.port}" if ":" in host else f"{host}:{self._connection.port}"

    def stop(self) -> None:
        """Ask for the end: received messages are committed and acknowledged first. Signal handlers may call it."""
        self._stopped = True
        self._ring()

    def run(self, seconds: float | None = None) -> MqttStats:
        """Run until stopped, or for some seconds, and return the figures.

        Raises BrokerError, and the producer's error for a message that is not committed.
        """
        self._until = None if seconds is None else self._begun + seconds
        log.info("bridge started", broker=self.broker, depot=self._counts.depot, topics=self._filters, windrow=VERSION)
        if self._connection.sends_password and not self._mqtt.tls and self._connection.host not in LOOPBACK:
            log.warning("password without TLS", broker=self.broker)
        with self._lines.until_ended():
            try:
                while not self._is_over():
                    if self._connection.is_open:
                        self._turn()
                    else:
                        self._connect()
                self._drain()
            except BaseException:
                with suppress(Exception):
                    self._settle()  # acknowledges what was committed before the error
                raise
            finally:
                with suppress(OSError):
                    self._connection.close()
        return replace(self._counts)

    # The loop.

    def _is_over(self) -> bool:
        return self._stopped or (self._until is not None and time.monotonic() >= self._until)

    def _turn(self) -> None:
        """Receive messages, and acknowledge committed ones."""
        self._connection.pump(self._woken, self._has_room)
        if self._connection.is_subscribed and not self._subscribed:
            self._subscribed = True
            self._counts.connections += 1
            log.info("connected", broker=self.broker, session_kept=self._connection.session_kept)
        self._settle()
        if self._session.in_flight >= self._mqtt.receive_maximum:
            self._producer.flush(0)  # the broker sends nothing more until some messages are acknowledged
        self._lines.tick(time.monotonic())

    def _settle(self) -> None:
        """Process finished commits, and acknowledge what is due. Raises the error of a message that failed."""
        with suppress(BlockingIOError):
            self._woken.recv(65_536)
        failed: BaseException | None = None
        while self._settled:
            entry, future = self._settled.popleft()
            error = future.exception()
            if error is not None:
                failed = failed or error
                continue
            self._session.settled(entry)
            self._counts.committed += 1
            self._counts.depot_version = future.result().version
        if not self._connection.is_open:
            self._session.lost()
        for id_ in self._session.due():
            self._connection.acknowledge(id_)
            self._counts.acknowledged += 1
        self._progress(self._counts)
        if failed is not None:
            raise failed

    def _has_room(self) -> bool:
        """Tell whether the producer has room for another message of any size."""
        return self._session.held_bytes + self._largest <= self._room

    def _drain(self) -> None:
        """Accept nothing new, and wait until all received messages are committed or have failed."""
        self._draining = True
        self._producer.flush(0)
        while self._session.uncommitted_count:
            if self._connection.is_open:
                self._connection.pump(self._woken, lambda: True)
            else:
                select.select([self._woken], [], [], TICK)
            self._settle()

    # Connections.

    def _connect(self) -> None:
        """Connect, or wait until the next attempt. Raises BrokerError."""
        if self._connection.lost_because:
            self._wait(self._connection.lost_because)
        if self._is_over():
            return
        try:
            if not self._connection.open(self._is_over):
                return
        except OSError as error:
            self._connection.lost_because = self._connection.lost_because or first_line(error)
            return
        self._session.connected(self._connection.session_kept)
        self._subscribed = False

    def _wait(self, why: str) -> None:
        """Wait until the next attempt: longer each time, with jitter, so that bridges do not reconnect together."""
        seconds = self._pause * (0.5 + secrets.randbelow(501) / 1_000)
        log.warning("no connection", broker=self.broker, error=why, again_in_s=round(seconds, 1))
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._is_over():
            select.select([self._woken], [], [], min(left, TICK))
            self._settle()

    # Messages.

    def _receive(self, id_: int, again: bool, topic: bytes, payload: bytes) -> None:
        """Hand a message to the producer, unless it is a repetition."""
        content = blake2b(topic + b"\0" + payload, digest_size=16).digest()
        if self._session.is_redelivery(id_, again, content):
            self._counts.redelivered += 1
            return
        if self._draining:
            return  # not acknowledged, so the next bridge receives it
        self._pause = PAUSE_SECONDS
        name = topic.decode(errors="backslashreplace")
        row, fault = self._reader.read(name, payload)
        entry = self._session.received(id_, content, min(row.byte_count, self._largest))
        self._counts.received += 1
        if fault:
            self._counts.invalid += 1
            self._lines.invalid(name, fault, time.monotonic())
        sent = self._producer._send(row)  # noqa: SLF001 - the reader has made what `send` would make of it
        sent.add_done_callback(lambda future: self._report_outcome(entry, future))

    def _report_outcome(self, entry: InFlightMessage, future: Future[Ack]) -> None:
        """Report the outcome of a message to the loop; the producer's thread calls this."""
        self._settled.append((entry, future))
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):
            self._bell.send(b"\0")


def _producer(settings: Settings) -> Producer:
    options = settings.producer_options.model_dump() | {"block_timeout": 0}
    return Producer(
        absolute(settings.depot),
        f"mqtt:{settings.mqtt.client_id}",
        payload=payload_of(settings),
        retention=settings.retention,
        **options,
    )

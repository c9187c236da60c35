"""A connection to an MQTT 5 broker, with a session that the broker keeps and explicit acknowledgements.

The paho client runs in our thread. Its own thread would send an acknowledgement over whatever connection is open by
then.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from windrow.errors import BrokerError, MissingExtraError, SettingsError, first_line
from windrow.producer.bridge.settings import password
from windrow.settings.bridges import MqttSettings

try:
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError as missing:
    raise MissingExtraError("a bridge from MQTT needs paho-mqtt", "pip install 'windrow-delta[mqtt]'") from missing

# Takes a message: its id (0 if the broker awaits no acknowledgement), whether it is repeated, topic, payload.
Receive = Callable[[int, bool, bytes, bytes], None]
SESSION_EXPIRY_SECONDS = 7 * 24 * 3_600  # how long the broker keeps messages for a bridge that is away; a guess
PACKETS = 100  # packets read at most between two rounds of acknowledgements
CONNECT_TIMEOUT_SECONDS = 10.0  # how long the broker has to answer; a guess
KEEPALIVE_SECONDS = 60  # a broker that is silent for this long is pinged; the default of paho and mosquitto
TICK = 1.0  # seconds, the longest wait before the clock is checked
ONLY_IF_NEW = 1  # retained messages come only for a new subscription
# Temporary refusals: unspecified, unavailable, busy, shutting down, message rate, quota, connection rate.
PASSING = {128, 136, 137, 139, 150, 151, 159}
TAKEN_OVER = 142


class Connection:
    """A session with a broker, over successive connections."""

    def __init__(self, mqtt: MqttSettings, filters: Sequence[str], receive: Receive) -> None:
        """Read the password and the certificates. Raises SettingsError."""
        self.host, self.port = mqtt.address
        self.session_kept = False
        self.lost_because = ""
        self._mqtt, self._receive = mqtt, receive
        self._filters = [f"$share/{mqtt.share_name}/{filter_}" if mqtt.share_name else filter_ for filter_ in filters]
        self._accepted = self.is_subscribed = False
        self._client = self._create_client(mqtt)

    @property
    def is_open(self) -> bool:
        """Tell whether the broker has accepted the connection and it is still open."""
        return self._accepted and self._client.socket() is not None

    def open(self, stopped: Callable[[], bool]) -> bool:
        """Connect and subscribe; return False if `stopped` before the broker answers. Raises BrokerError, OSError."""
        self._accepted = self.is_subscribed = False
        self.lost_because = ""
        try:
            self._client.reconnect()
        except ssl.SSLError as error:
            raise self._tls_error(error) from error
        deadline = time.monotonic() + CONNECT_TIMEOUT_SECONDS
        while not self._accepted:
            self._await_answer(deadline)
            if stopped():
                return False
        self._subscribe()
        return True

    def pump(self, wake: socket.socket, has_room: Callable[[], bool]) -> None:
        """Read and write, or wait up to a second or until woken; received messages go to `receive`.

        Reads nothing while there is no room.
        """
        ready, wait = self._ready(wake, TICK, reading=has_room()), 0.0
        for _ in range(PACKETS):
            if not ready or not self.is_open or not has_room():
                break
            self._client.loop_read()
            ready = self._ready(None, wait, reading=True)
        if self.is_open and self._client.want_write():
            self._client.loop_write()
        self._client.loop_misc()

    def acknowledge(self, id_: int) -> None:
        """Tell the broker that a message is in the depot."""
        self._client.ack(id_, 1)

    def close(self) -> None:
        """Disconnect once the broker has read all acknowledgements, or after `CONNECT_TIMEOUT_SECONDS`.

        The broker keeps the session. Messages that arrive from now on are dropped: the broker sends them again over the
        next connection.
        """
        deadline = time.monotonic() + CONNECT_TIMEOUT_SECONDS
        self._receive = lambda *_: None
        # guard: acknowledgements-read
        if self.is_open and self.is_subscribed:
            self._await_broker(deadline)
        if not self.is_open:
            return
        self._client.disconnect()
        while (sock := self._client.socket()) is not None and time.monotonic() < deadline:
            select.select([], [sock], [], TICK)
            self._client.loop_write()

    # Parts.

    def _subscribe(self) -> None:
        self._client.subscribe(
            [(filter_, SubscribeOptions(qos=1, retainHandling=ONLY_IF_NEW)) for filter_ in self._filters]
        )

    def _await_broker(self, deadline: float) -> None:
        """Wait until the broker has read everything written: it answers in order, so subscribe once more.

        A broker that finds the connection closed when it sends the next message drops the acknowledgements that it has
        not read yet, and sends their messages again.
        """
        answered: list[bool] = []
        self._client.on_subscribe = lambda *_: answered.append(True)
        self._subscribe()
        while self.is_open and not answered and time.monotonic() < deadline:
            self._read_and_write()

    def _read_and_write(self) -> None:
        """Read what there is, or wait up to a second for it, and write what is due."""
        if self._ready(None, TICK, reading=True):
            self._client.loop_read()
        if self._client.socket() is not None and self._client.want_write():
            self._client.loop_write()

    def _create_client(self, mqtt: MqttSettings) -> Client:
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=mqtt.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        secret = password(mqtt, "mqtt")
        self.sends_password = bool(secret)
        if mqtt.username or secret:
            client.username_pw_set(mqtt.username or None, secret or None)
        if mqtt.tls:
            client.tls_set_context(tls_context(mqtt))
        client.connect_timeout = CONNECT_TIMEOUT_SECONDS
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_subscribe, client.on_message = self._on_subscribe, self._on_message
        client.on_socket_close = self._on_closing
        client.enable_logger(_Failures(self._note))
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = SESSION_EXPIRY_SECONDS
        properties.ReceiveMaximum = mqtt.receive_maximum
        client.connect_async(self.host, self.port, KEEPALIVE_SECONDS, clean_start=False, properties=properties)
        return client

    def _ready(self, wake: socket.socket | None, seconds: float, reading: bool) -> bool:
        """Wait until the socket is ready or `seconds` have passed; return whether there is something to read."""
        sock: Any = self._client.socket()
        if sock is None:
            return False
        if reading and isinstance(sock, ssl.SSLSocket) and sock.pending():
            return True
        read = [side for side in (wake, sock if reading else None) if side is not None]
        readable, _, _ = select.select(read, [sock] if self._client.want_write() else [], [], seconds)
        return sock in readable

    def _await_answer(self, deadline: float) -> None:
        """Wait a moment for the broker to accept the connection. Raises OSError, BrokerError."""
        self._read_and_write()
        if self._client.socket() is None:
            if self._mqtt.tls and "SSL" in self.lost_because:
                raise self._tls_error(self.lost_because)
            raise ConnectionError(self.lost_because or "the broker closed the connection")
        if time.monotonic() > deadline:
            raise TimeoutError("the broker does not answer")

    def _on_connect(self, _: Client, __: Any, flags: Any, reason: ReasonCode, ___: Any) -> None:
        if not reason.is_failure:
            self._accepted, self.session_kept = True, bool(flags.session_present)
            return
        self.lost_because = f"the broker refuses: {reason}"
        if reason.value not in PASSING:
            raise BrokerError(
                f"the broker {self.host}:{self.port} refuses the connection of {self._mqtt.client_id!r}: {reason}",
                "Check username, password, client_id and certificates in [mqtt]; the broker must support MQTT 5.",
            )

    def _on_subscribe(self, _: Client, __: Any, ___: int, reasons: list[ReasonCode], ____: Any) -> None:
        for filter_, reason in zip(self._filters, reasons, strict=False):
            if reason.is_failure or reason.value != 1:
                raise BrokerError(
                    f"the broker {self.host}:{self.port} refuses a subscription to {filter_!r} with QoS 1: {reason}",
                    "Check the permissions of this user on the broker.",
                )
        self.is_subscribed = True

    def _on_message(self, _: Client, __: Any, message: MQTTMessage) -> None:
        topic = message._topic  # noqa: SLF001 - `topic` raises if it is not UTF-8
        self._receive(message.mid if message.qos else 0, message.dup, topic, bytes(message.payload))

    def _on_disconnect(self, _: Client, __: Any, flags: Any, reason: ReasonCode, ___: Any) -> None:
        from_broker = flags.is_disconnect_packet_from_server
        why = f"the broker disconnected: {reason}" if from_broker else "the connection was lost"
        self.lost_because = self.lost_because or why
        if from_broker and reason.value == TAKEN_OVER:
            raise BrokerError(
                f"another client took over the session of {self._mqtt.client_id!r}",
                "Give each bridge its own client_id.",
            )

    def _on_closing(self, _: Client, __: Any, sock: Any) -> None:
        """Read why the broker refuses the handshake, before paho closes the socket.

        With TLS 1.3 the reason arrives after our part of the handshake. If the broker closes right after it, paho fails
        to write, and does not read.
        """
        if self._accepted or not isinstance(sock, ssl.SSLSocket):
            return
        with suppress(OSError):
            try:
                sock.recv(1)
            except ssl.SSLError as error:
                if error.reason:
                    self._note(first_line(error))

    def _note(self, failure: str) -> None:
        self.lost_because = failure

    def _tls_error(self, error: ssl.SSLError | str) -> Exception:
        """Return the error for a failed handshake: a refusal, unless the connection just ended."""
        why = error if isinstance(error, str) else first_line(error)
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "EOF" in why:
            return ConnectionError(why)
        return BrokerError(
            f"the broker {self.host}:{self.port}: TLS verification failed: {why}",
            "Check tls, host, ca_file, certificate_file and key_file in [mqtt].",
        )


class _Failures(logging.Logger):
    """Catches errors that paho only logs. With `on_log` it would format every other log line too."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__("windrow.mqtt", logging.ERROR)
        self._note = note

    def handle(self, record: logging.LogRecord) -> None:
        """Pass on the message."""
        self._note(record.getMessage())


def tls_context(mqtt: MqttSettings) -> ssl.SSLContext:
    """Return the TLS context with the trusted authorities and the client's certificate. Raises SettingsError."""
    try:
        context = ssl.create_default_context(cafile=mqtt.ca_file or None)
        if mqtt.certificate_file:
            context.load_cert_chain(mqtt.certificate_file, mqtt.key_file, password="")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the certificates of [mqtt] cannot be read: {first_line(error)}",
            "Check ca_file, certificate_file and key_file.",
        ) from error
    return context

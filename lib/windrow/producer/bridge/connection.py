"""A connection to a broker: MQTT 5 with a session that the broker keeps, and acknowledgements by hand.

paho's client is driven from one thread, ours, because its own would send an acknowledgement over whatever connection
there is by then.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from windrow.errors import BrokerRefused, MissingExtra, SettingsError, first_line
from windrow.model.durations import SECOND
from windrow.settings.settings import MqttPart

try:
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError as missing:
    raise MissingExtra("a bridge from MQTT needs paho-mqtt", "pip install 'windrow-delta[mqtt]'") from missing

PORT, TLS_PORT = 1883, 8883
NEVER = 2**32 - 1  # seconds of a session that does not expire
PACKETS = 100  # between two looks at what is to be acknowledged
TICK = 1.0  # seconds between two looks at the clock
ONLY_IF_NEW = 1  # of a subscription: whether retained messages come
# What may pass: unspecified, unavailable, busy, shutting down, message rate, quota, connection rate.
PASSING = {128, 136, 137, 139, 150, 151, 159}
TAKEN_OVER = 142


class Heard(Protocol):
    """Takes what comes: the id (0 when no acknowledgement is waited for), whether it comes again, topic, payload."""

    def __call__(self, id_: int, again: bool, topic: bytes, payload: bytes) -> None:
        """Take a message."""


class Connection:
    """A session with a broker, over one connection after another."""

    def __init__(self, chosen: MqttPart, filters: Sequence[str], heard: Heard) -> None:
        """Read password and certificates. Raises SettingsError."""
        self.host, self.port = chosen.host, chosen.port or (TLS_PORT if chosen.tls else PORT)
        self.session_kept = False
        self.lost_because = ""
        self._chosen, self._heard = chosen, heard
        self._filters = [f"$share/{chosen.group}/{one}" if chosen.group else one for one in filters]
        self._accepted = self.is_subscribed = False
        self._client = self._made(chosen)

    @property
    def is_open(self) -> bool:
        """Tell whether there is a connection that the broker has accepted."""
        return self._accepted and self._client.socket() is not None

    def open(self, stopped: Callable[[], bool]) -> bool:
        """Connect and subscribe; False when `stopped` before the broker has answered. Raises BrokerRefused, OSError."""
        self._accepted = self.is_subscribed = False
        self.lost_because = ""
        try:
            self._client.reconnect()
        except ssl.SSLError as error:
            raise self._refused_tls(error) from error
        deadline = time.monotonic() + self._chosen.connect_timeout / SECOND
        while not self._accepted:
            self._await_answer(deadline)
            if stopped():
                return False
        self._client.subscribe([(one, SubscribeOptions(qos=1, retainHandling=ONLY_IF_NEW)) for one in self._filters])
        return True

    def pump(self, wake: socket.socket, has_room: Callable[[], bool]) -> None:
        """Read and write what there is, or wait for it up to a second or until woken; what comes is heard.

        Nothing is read while there is no room.
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
        """Disconnect; the broker keeps the session. What could not be written any more is not waited for."""
        if not self.is_open:
            return
        deadline = time.monotonic() + self._chosen.connect_timeout / SECOND
        self._client.disconnect()
        while (sock := self._client.socket()) is not None and time.monotonic() < deadline:
            select.select([], [sock], [], TICK)
            self._client.loop_write()

    # Parts.

    def _made(self, chosen: MqttPart) -> Client:
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=chosen.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        secret = password(chosen)
        self.sends_password = bool(secret)
        if chosen.username or secret:
            client.username_pw_set(chosen.username or None, secret or None)
        if chosen.tls:
            client.tls_set_context(tls_context(chosen))
        client.connect_timeout = chosen.connect_timeout / SECOND
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_subscribe, client.on_message = self._on_subscribe, self._on_message
        client.enable_logger(_Failures(self._note))
        wanted = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        expiry = chosen.session_expiry
        wanted.SessionExpiryInterval = NEVER if expiry is None else expiry // SECOND
        wanted.ReceiveMaximum = chosen.receive_maximum
        client.connect_async(self.host, self.port, chosen.keepalive // SECOND, clean_start=False, properties=wanted)
        return client

    def _ready(self, wake: socket.socket | None, seconds: float, reading: bool) -> bool:
        """Wait until there is something to do; tell whether it is to read."""
        sock: Any = self._client.socket()
        if sock is None:
            return False
        if reading and isinstance(sock, ssl.SSLSocket) and sock.pending():
            return True
        read = [one for one in (wake, sock if reading else None) if one is not None]
        readable, _, _ = select.select(read, [sock] if self._client.want_write() else [], [], seconds)
        return sock in readable

    def _await_answer(self, deadline: float) -> None:
        """Wait a moment for the broker to accept the connection. Raises OSError, BrokerRefused."""
        if self._ready(None, TICK, reading=True):
            self._client.loop_read()
        if self._client.socket() is not None and self._client.want_write():
            self._client.loop_write()
        if self._client.socket() is None:
            if self._chosen.tls and "SSL" in self.lost_because:
                raise self._refused_tls(self.lost_because)
            raise ConnectionError(self.lost_because or "the broker closed the connection")
        if time.monotonic() > deadline:
            raise TimeoutError("the broker does not answer")

    def _on_connect(self, _: Client, __: Any, flags: Any, reason: ReasonCode, ___: Any) -> None:
        if not reason.is_failure:
            self._accepted, self.session_kept = True, bool(flags.session_present)
            return
        self.lost_because = f"the broker refuses: {reason}"
        if reason.value not in PASSING:
            raise BrokerRefused(
                f"the broker {self.host}:{self.port} refuses the connection of {self._chosen.client_id!r}: {reason}",
                "See username, password, client_id and certificates in [mqtt]; the broker must speak MQTT 5.",
            )

    def _on_subscribe(self, _: Client, __: Any, ___: int, reasons: list[ReasonCode], ____: Any) -> None:
        for one, reason in zip(self._filters, reasons, strict=False):
            if reason.is_failure or reason.value != 1:
                raise BrokerRefused(
                    f"the broker {self.host}:{self.port} refuses a subscription to {one!r} with QoS 1: {reason}",
                    "See the rights of this user there.",
                )
        self.is_subscribed = True

    def _on_message(self, _: Client, __: Any, message: MQTTMessage) -> None:
        topic = message._topic  # noqa: SLF001 - `topic` raises for one that is no UTF-8
        self._heard(message.mid if message.qos else 0, message.dup, topic, bytes(message.payload))

    def _on_disconnect(self, _: Client, __: Any, flags: Any, reason: ReasonCode, ___: Any) -> None:
        told = flags.is_disconnect_packet_from_server
        said = f"the broker says: {reason}" if told else "the connection was lost"
        self.lost_because = self.lost_because or said
        if told and reason.value == TAKEN_OVER:
            raise BrokerRefused(
                f"another client took over the session of {self._chosen.client_id!r}",
                "Give each bridge a client_id of its own.",
            )

    def _note(self, failure: str) -> None:
        self.lost_because = failure

    def _refused_tls(self, error: ssl.SSLError | str) -> Exception:
        """Return the error of a handshake: refused, unless the connection just ended."""
        said = error if isinstance(error, str) else first_line(error)
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "EOF" in said:
            return ConnectionError(said)
        return BrokerRefused(
            f"the broker {self.host}:{self.port} and the bridge do not trust each other: {said}",
            "See tls, host, ca_file, certificate_file and key_file in [mqtt].",
        )


class _Failures(logging.Logger):
    """What paho logs as an error, and tells in no other way. With `on_log` it would put all else into words, too."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__("windrow.mqtt", logging.ERROR)
        self._note = note

    def handle(self, record: logging.LogRecord) -> None:
        """Hand on what it says."""
        self._note(record.getMessage())


def password(chosen: MqttPart) -> str:
    """Return the password, empty for none. Raises SettingsError."""
    if not chosen.password_file:
        return chosen.password.get_secret_value()
    try:
        return Path(chosen.password_file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"mqtt.password_file {chosen.password_file} cannot be read: {type(error).__name__}", "See its rights."
        ) from None


def tls_context(chosen: MqttPart) -> ssl.SSLContext:
    """Return whom to trust and who we are. Raises SettingsError."""
    try:
        context = ssl.create_default_context(cafile=chosen.ca_file or None)
        if chosen.certificate_file:
            context.load_cert_chain(chosen.certificate_file, chosen.key_file, password="")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the certificates of [mqtt] cannot be read: {first_line(error)}",
            "See ca_file, certificate_file and key_file.",
        ) from error
    return context

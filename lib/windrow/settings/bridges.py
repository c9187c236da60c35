"""The settings of the bridges, which receive messages from brokers."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from windrow.model.section import SettingsSection

PORT, TLS_PORT, MAX_PORTS = 1_883, 8_883, 1 << 16
TLS = "mqtts://"
ADDRESS = re.compile(r"(?:\[([^\]]+)\]|([^:/\[\]]+))(?::(\d+))?")
IPV6 = re.compile(r"[0-9A-Fa-f.]*(:[0-9A-Fa-f.]*){2,}")


class MqttSettings(SettingsSection):
    """`[mqtt]`: the broker from which `windrow bridge mqtt` receives messages."""

    broker: str = Field("127.0.0.1", description="HOST or HOST:PORT, with TLS mqtts://HOST or mqtts://HOST:PORT")
    topics: list[str] = Field(default_factory=list, description="topic patterns, e.g. plant/{key}/{type...}")
    client_id: str = Field("windrow-bridge", min_length=1, description="the session of this bridge; do not change it")
    share_name: str = Field("", description="name of a shared subscription; empty: none")
    event_time: str = Field("arrival", description="arrival, collectd, or json:FIELD of the payload")
    username: str = Field("", description="empty: none")
    password: SecretStr = Field(
        SecretStr(""), description="file:PATH of a file with it; or better, set WINDROW_MQTT__PASSWORD"
    )
    ca_file: str = Field("", description="trusted CA certificates; empty: those of the system")
    certificate_file: str = Field("", description="certificate of this client; empty: none")
    key_file: str = Field("", description="its private key, without a passphrase")
    receive_maximum: int = Field(1_000, ge=1, le=65_535, description="maximum number of unacknowledged messages")

    @property
    def tls(self) -> bool:
        """Return whether the connection is encrypted."""
        return self.broker.startswith(TLS)

    @property
    def address(self) -> tuple[str, int]:
        """Return the broker's host and port."""
        return split_address(self.broker)

    @field_validator("broker")
    @classmethod
    def _has_address(cls, broker: str) -> str:
        split_address(broker)
        return broker

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file must be set together")
        if not self.tls and (self.ca_file or self.certificate_file):
            raise ValueError("certificates need a broker that begins with mqtts://")
        if set(self.share_name) & set("/+#"):
            raise ValueError("share_name must not contain / + or #")
        return self


class KafkaSettings(SettingsSection):
    """`[kafka]`: the topics from which `windrow bridge kafka` reads messages."""

    bootstrap_servers: str = Field(
        "127.0.0.1:9092", min_length=1, description="HOST:PORT of some brokers, comma-separated"
    )
    topics: list[str] = Field(default_factory=list, description="topics; one that begins with ^ is a pattern")
    group_id: str = Field(
        "windrow-bridge", min_length=1, description="consumer group, whose workers share the partitions"
    )
    start_from: str = Field(
        "earliest", description="where a new partition begins: earliest, latest or timestamp:2026-01-31T12:00:00Z"
    )
    field_map: list[str] = Field(
        default_factory=list, description="how columns are filled, e.g. key=device; see docs/howto/kafka.md"
    )
    event_time: str = Field("arrival", description="arrival (Kafka's timestamp), collectd, or json:FIELD of the value")
    password: SecretStr = Field(
        SecretStr(""), description="file:PATH of a file with it; or better, set WINDROW_KAFKA__PASSWORD"
    )
    properties: dict[str, SecretStr] = Field(
        default_factory=dict, description="properties of librdkafka: security.protocol, ..."
    )


def split_address(broker: str) -> tuple[str, int]:
    """Return host and port of HOST, HOST:PORT or [HOST]:PORT, with or without a scheme. Raises ValueError."""
    place, port = re.sub("^mqtts?://", "", broker), TLS_PORT if broker.startswith(TLS) else PORT
    if IPV6.fullmatch(place):
        return place, port
    match = ADDRESS.fullmatch(place)
    if not match or not 0 < int(match[3] or port) < MAX_PORTS:
        raise ValueError("it must be HOST or HOST:PORT, or with TLS mqtts://HOST or mqtts://HOST:PORT")
    return match[1] or match[2], int(match[3] or port)

"""The settings of the bridges, which take messages from brokers."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from windrow.model.section import OrNever, Part


class MqttPart(Part):
    """`[mqtt]`: the broker that `windrow bridge mqtt` takes messages from."""

    host: str = Field("127.0.0.1", min_length=1, description="the broker")
    port: int = Field(0, ge=0, le=65_535, description="its port; 0: 1883, with TLS 8883")
    topics: list[str] = Field(default_factory=list, description="topic patterns, e.g. plant/{key}/{type...}")
    client_id: str = Field("windrow-bridge", min_length=1, description="the session of this bridge; keep it")
    group: str = Field("", description="name of a shared subscription; empty: none")
    event_time: str = Field("arrival", description="arrival, collectd, or json:FIELD of the payload")
    username: str = Field("", description="empty: none")
    password: SecretStr = Field(SecretStr(""), description="better in WINDROW_MQTT__PASSWORD or in password_file")
    password_file: str = Field("", description="file that holds the password; empty: none")
    tls: bool = Field(False, description="connect with TLS")
    ca_file: str = Field("", description="certificates that are trusted; empty: those of the system")
    certificate_file: str = Field("", description="certificate of this client; empty: none")
    key_file: str = Field("", description="its private key, without a passphrase")
    session_expiry: OrNever = Field("7d", description="how long the broker keeps messages for this bridge, or never")  # type: ignore[assignment]
    receive_maximum: int = Field(
        1_000, ge=1, le=65_535, description="most messages that wait for their acknowledgement"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.password.get_secret_value() and self.password_file:
            raise ValueError("only one of password and password_file can be set")
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file must be set together")
        if not self.tls and (self.ca_file or self.certificate_file):
            raise ValueError("certificates need tls = true")
        if set(self.group) & set("/+#"):
            raise ValueError("group must not contain / + or #")
        return self


class KafkaPart(Part):
    """`[kafka]`: the topics that `windrow bridge kafka` takes messages from."""

    brokers: str = Field("127.0.0.1:9092", min_length=1, description="HOST:PORT of some brokers, with commas between")
    topics: list[str] = Field(default_factory=list, description="topics; one that begins with ^ is a pattern")
    group: str = Field("windrow-bridge", min_length=1, description="consumer group, whose workers share the partitions")
    start: str = Field("earliest", description="of a new partition: earliest, latest or timestamp:2026-01-31T12:00:00Z")
    columns: list[str] = Field(
        default_factory=list, description="what fills columns, e.g. key=device; see docs/howto/kafka.md"
    )
    event_time: str = Field("arrival", description="arrival (Kafka's timestamp), collectd, or json:FIELD of the value")
    password: SecretStr = Field(SecretStr(""), description="better in WINDROW_KAFKA__PASSWORD or in password_file")
    password_file: str = Field("", description="file that holds the password; empty: none")
    properties: dict[str, SecretStr] = Field(default_factory=dict, description="of librdkafka: security.protocol, ...")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.password.get_secret_value() and self.password_file:
            raise ValueError("only one of password and password_file can be set")
        return self

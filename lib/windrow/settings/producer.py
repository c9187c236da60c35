"""The settings of producers."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from windrow.model.section import Count, Duration, SettingsSection

BATCH_BYTES = 1_048_576  # a producer commits this many at once; a guess


class ProducerSettings(SettingsSection):
    """`[producer]`: how sent messages become commits."""

    linger: Duration = Field("100ms", description="how long a message waits for others to share its commit")  # type: ignore[assignment]
    max_commit_rows: Count = Field(10_000, description="this many messages are committed without waiting")
    max_message_bytes: Count = Field(1_048_576, description="a larger message is refused")
    batch_by: Literal["", "source", "key", "type"] = Field(
        "", description="messages sent one by one share a commit only with the same value of this column"
    )


class ProducerOptions(ProducerSettings):
    """The options of `Producer` and `RawProducer` beside `[producer]`.

    At most `max_buffer_bytes` wait for their commit. Sending waits for room up to `block_timeout`; 0s: it raises at
    once. A message that is not committed after `delivery_timeout` fails. `fsync` acknowledges only messages that a
    local disk keeps through a power cut.
    """

    max_buffer_bytes: Count = 67_108_864
    block_timeout: Duration = "60s"  # type: ignore[assignment]
    delivery_timeout: Duration = "120s"  # type: ignore[assignment]
    fsync: bool = True

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.max_message_bytes > self.max_buffer_bytes:
            raise ValueError(
                "max_message_bytes must be at most max_buffer_bytes, or a large message would wait forever"
            )
        return self

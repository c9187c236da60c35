"""Send messages to a depot from a program (`Producer`), or the bytes of a raw source as chunks (`RawProducer`)."""

from __future__ import annotations

import time
from concurrent.futures import Future
from datetime import datetime
from typing import Any

import pyarrow as pa

from windrow.errors import IncompatibleTableError, InvalidMessageError, MessagesError
from windrow.model import chunks, messages
from windrow.model.payload import name, parse, text_or_bytes
from windrow.producer.buffer import Buffer
from windrow.producer.delivery import Ack
from windrow.producer.row import (
    ChunkRow,
    MessageRow,
    complete_rows,
    required_number,
    required_payload,
    required_text,
    required_time,
)
from windrow.producer.sender import Sender, required_name


class Producer(Sender):
    """Sends messages to a depot: holds them briefly, commits them together, and acknowledges them one by one.

    Threads may share a producer; producers with the same id and settings share one queue. A forked process needs its
    own producer: a copy raises ProducerInUseError.
    """

    def __init__(
        self,
        depot: str,
        producer_id: str,
        *,
        payload: str = "string",
        retention: str = "90d",
        buffer: Buffer | None = None,
        **settings: Any,
    ) -> None:
        """Open the depot, or create it.

        Args:
            depot: The path of the depot.
            producer_id: The name under which messages are numbered; one process uses it at a time.
            payload: The type of payloads of a new depot, such as `double`.
            retention: The retention of a new depot.
            buffer: Room that producers of several ids share, in place of `max_buffer_bytes`.
            settings: Those of `[producer]`, and `max_buffer_bytes`, `block_timeout`, `delivery_timeout` and `fsync`.

        Raises:
            SettingsError: A setting is wrong.
            InvalidMessageError: The id is invalid.
            IncompatibleTableError: The table is not a depot of messages.
            TableUnreadableError: The depot cannot be read.
            ProducerInUseError: The id has other settings in this process, or the process is a fork.

        Example:
            >>> with windrow.Producer("data/depot", "gateway-7") as producer:
            ...     sent = producer.send(key="pump-2", type="temperature", payload="21.5")
            >>> sent.result().sequence
            1
        """
        super().__init__(
            depot,
            required_name("producer_id", producer_id),
            messages.schema(parse(payload)),
            retention,
            settings,
            buffer,
        )
        self.producer_id = producer_id
        self.payload: pa.DataType = self._committer.schema.field("payload").type

    @property
    def binary(self) -> bool:
        """Tell whether the depot's payloads are bytes instead of text.

        Raises IncompatibleTableError if they are neither.
        """
        if text_or_bytes(self.payload) != self.payload:
            raise IncompatibleTableError(
                f"a bridge writes text or bytes, but the payloads of this depot are {name(self.payload)}",
                "Let the bridge create its own depot, and set payload_type and [depot.columns] for the ledger.",
            )
        return bool(self.payload == pa.binary())

    def send(
        self,
        *,
        key: str,
        type: str,  # noqa: A002 - the column's name
        event_time: datetime | int | None = None,
        payload: Any = None,
        source: str | None = None,
        received_at: datetime | int | None = None,
        sequence: int | None = None,
    ) -> Future[Ack]:
        """Send a message, and return the future of its acknowledgement.

        Times are datetimes with a zone or microseconds since the epoch, and default to now. `source` defaults to the
        producer's id, `sequence` to the message's number. The payload is text, bytes, or a number, which is kept as its
        text; in a depot with another payload type it is a number, a bool, or a dict. Waits up to `block_timeout` for
        room. Raises InvalidMessageError, BufferFullError, ProducerFencedError, ProducerClosedError.
        """
        return self._send(self._row(key, type, event_time, payload, source, received_at, sequence))

    def send_invalid(
        self,
        *,
        payload: Any,
        source: str | None = None,
        key: str | None = None,
        type: str | None = None,  # noqa: A002 - the column's name
        event_time: datetime | int | None = None,
    ) -> Future[Ack]:
        """Send an invalid message, so that the batcher records it as rejected (`invalid`) instead of it being lost.

        At least one of key, type and event time must be missing. The message may be larger than `max_message_bytes`.
        Otherwise it works like `send`.
        """
        if None not in (key, type, event_time):
            raise InvalidMessageError("a message with key, type and event_time is valid", "Use send().")
        ready = MessageRow(
            self._source(source),
            None if key is None else required_text("key", key),
            None if type is None else required_text("type", type),
            None if event_time is None else required_time("event_time", event_time),
            time.time_ns() // 1_000,
            None,
            required_payload(payload, self.payload),
        )
        return self._send(ready)

    async def send_async(self, **message: Any) -> Ack:
        """Send a message as `send` does, and await its acknowledgement without blocking the event loop."""
        self._require_usable()
        return await self._send_async(self._row(**message))

    def send_many(
        self, messages: pa.Table | pa.RecordBatch, mark: int | None = None, fingerprint: int | None = None
    ) -> Future[Ack]:
        """Send many messages at once, in one commit, after everything that was sent before.

        The columns are those of `send`; `key` and `type` are required. A row in which one of them is NULL goes into the
        depot unchanged, and the batcher records it as rejected. The acknowledgement is that of the last row. `mark` and
        `fingerprint` are 64-bit numbers that the log keeps with the commit, for example your position in your own
        input, and a hash of what is there. `position()` returns both; a table without rows only records them. Raises
        MessagesError, InvalidMessageError for an invalid number, and the errors of `send`.
        """
        self._require_usable()
        table = pa.table(messages) if isinstance(messages, pa.RecordBatch) else messages
        if not isinstance(table, pa.Table) or (not table.num_rows and mark is None):
            raise MessagesError("there are no messages to send", "Pass an Arrow table with rows.")
        whole = complete_rows(table, self.producer_id, time.time_ns() // 1_000, self.payload)
        numbers = [
            None if number is None else required_number(name, number)
            for name, number in (("mark", mark), ("fingerprint", fingerprint))
        ]
        return self._queue.send_many(whole, *numbers, may_wait=not self._committer.is_own_thread())

    def _row(
        self,
        key: str,
        type: str,  # noqa: A002 - the column's name
        event_time: datetime | int | None = None,
        payload: Any = None,
        source: str | None = None,
        received_at: datetime | int | None = None,
        sequence: int | None = None,
    ) -> MessageRow:
        """Return a checked message. Raises InvalidMessageError."""
        now = time.time_ns() // 1_000
        ready = MessageRow(
            self._source(source),
            required_text("key", key),
            required_text("type", type),
            now if event_time is None else required_time("event_time", event_time),
            now if received_at is None else required_time("received_at", received_at),
            None if sequence is None else required_number("sequence", sequence),
            required_payload(payload, self.payload),
        )
        most = self._chosen.max_message_bytes
        if ready.byte_count > most:
            raise InvalidMessageError(
                f"a message of {ready.byte_count:,} bytes is larger than max_message_bytes, {most:,}",
                "Nothing was sent. Send less, or raise max_message_bytes.",
            )
        return ready

    def _source(self, source: str | None) -> str:
        return self.producer_id if source is None else required_text("source", source)


class RawProducer(Sender):
    """Sends the bytes of one raw source to a raw depot, each buffer as one chunk, in order.

    Records may span buffers. If a chunk is not committed, no later one is: all held chunks fail and the producer
    accepts no more. Open it again and continue after `last_sequence()`. Otherwise it works like `Producer`.
    """

    def __init__(
        self, depot: str, source: str, *, retention: str = "90d", buffer: Buffer | None = None, **settings: Any
    ) -> None:
        r"""Open the raw depot, or create it.

        Args:
            depot: The path of the raw depot.
            source: The name of the raw source.
            retention: The retention of a new depot.
            buffer: Room that producers of several sources share, in place of `max_buffer_bytes`.
            settings: Those of `[producer]`, and `max_buffer_bytes`, `block_timeout`, `delivery_timeout` and `fsync`.

        Raises:
            SettingsError: A setting is wrong.
            InvalidMessageError: The name of the source is invalid.
            IncompatibleTableError: The table is not a raw depot.
            TableUnreadableError: The depot cannot be read.
            ProducerInUseError: The source has other settings in this process, or the process is a fork.

        Example:
            >>> with windrow.RawProducer("data/raw", "line-1") as producer:
            ...     sent = producer.send(b"2026-01-31T12:00:00Z,pump-1,21.5\n")
            >>> sent.result().sequence
            1
        """
        super().__init__(depot, required_name("source", source), chunks.RAW, retention, settings, buffer)
        self.source = source

    def send(
        self, buffer: bytes | bytearray | memoryview, *, last: bool = False, sequence: int | None = None
    ) -> Future[Ack]:
        """Send a buffer as the next chunk, and return the future of its acknowledgement with the chunk's number.

        The `last` chunk ends the source. With a `sequence`, the chunk is refused unless that is its number, so that
        nothing is sent twice after a chunk with an unknown outcome. Waits up to `block_timeout` for room. Raises
        InvalidMessageError, BufferFullError, ProducerFencedError, ProducerClosedError.
        """
        return self._send(self._chunk(buffer, last, sequence))

    async def send_async(
        self, buffer: bytes | bytearray | memoryview, *, last: bool = False, sequence: int | None = None
    ) -> Ack:
        """Send a buffer as `send` does, and await its acknowledgement without blocking the event loop."""
        return await self._send_async(self._chunk(buffer, last, sequence))

    def finish(self) -> Future[Ack]:
        """End the source with an empty last chunk."""
        return self.send(b"", last=True)

    @property
    def ended(self) -> bool:
        """Tell whether the last chunk of the source is in the depot."""
        return self.position().mark is not None

    def _chunk(self, buffer: object, last: bool, sequence: int | None) -> ChunkRow:
        if not isinstance(buffer, bytes | bytearray | memoryview):
            raise InvalidMessageError(f"a {type(buffer).__name__} is not a bytes-like buffer", "Send bytes.")
        content = bytes(buffer)
        most = self._chosen.max_message_bytes
        if len(content) > most:
            raise InvalidMessageError(
                f"a buffer of {len(content):,} bytes is larger than max_message_bytes, {most:,}",
                "Nothing was sent. Send it in pieces; records may span pieces.",
            )
        number = None if sequence is None else required_number("sequence", sequence)
        return ChunkRow(self.source, number, content, bool(last), time.time_ns() // 1_000)

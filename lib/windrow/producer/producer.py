"""The producer as a program uses it."""

from __future__ import annotations

import time
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from windrow.errors import MessageRefused, MessagesError
from windrow.model import messages
from windrow.producer.delivery import Ack
from windrow.producer.row import Form, conformed, required_number
from windrow.producer.sender import Sender

PAYLOADS = {"string": pa.string(), "binary": pa.binary()}


class Producer(Sender):
    """Sends messages into a depot: held for a moment, committed together, acknowledged one by one.

    Threads may share it, and several of one id and the same settings share one queue. A process that was forked needs
    its own: a copy refuses.
    """

    def __init__(
        self,
        depot: str,
        producer_id: str,
        *,
        payload: Literal["string", "binary"] = "string",
        keep: str = "90d",
        **settings: Any,
    ) -> None:
        """Open the depot, or make it, with payloads of a type and the retention `keep`.

        `settings` are those of `[producer]`. Raises SettingsError, TableRefused, TableUnreadable, ProducerInUse.
        """
        if not producer_id or not isinstance(producer_id, str):
            raise MessageRefused(f"producer_id = {producer_id!r} is no name", "Give it one that stays the same.")
        super().__init__(depot, producer_id, messages.schema(PAYLOADS[payload]), keep, settings)
        self.producer_id = producer_id
        self._payload = self._committer.schema.field("payload").type
        self._form = Form(producer_id, self._payload == pa.binary(), self._chosen.max_message_bytes)

    @property
    def binary(self) -> bool:
        """Tell whether the depot holds bytes, where others hold texts."""
        return self._form.binary

    def send(
        self,
        *,
        key: str,
        type: str,  # noqa: A002 - the column's name
        event_time: datetime | int | None = None,
        payload: str | bytes | None = None,
        source: str | None = None,
        received_at: datetime | int | None = None,
        sequence: int | None = None,
    ) -> Future[Ack]:
        """Send a message, and return the future of its acknowledgement.

        Times are datetimes with a zone or microseconds since the epoch, now unless given; `source` is the producer's id
        and `sequence` the message's number unless given. Waits for room as `when_full` says.
        Raises MessageRefused, ProducerFull, ProducerFenced, ProducerClosed.
        """
        return self._send(
            self._form.row(
                key=key,
                type=type,
                event_time=event_time,
                payload=payload,
                source=source,
                received_at=received_at,
                sequence=sequence,
            )
        )

    def send_invalid(
        self,
        *,
        payload: str | bytes | None,
        source: str | None = None,
        key: str | None = None,
        type: str | None = None,  # noqa: A002 - the column's name
        event_time: datetime | int | None = None,
    ) -> Future[Ack]:
        """Send what is no message, so that it stands among the rejected ones (`invalid`) instead of being lost.

        At least one of key, type and event time is missing, and says there what is wrong. It may be larger than
        `max_message_bytes`. Else it is as `send`.
        """
        return self._send(self._form.invalid(payload=payload, source=source, key=key, type=type, event_time=event_time))

    async def send_async(self, **message: Any) -> Ack:
        """Send a message as `send` does, and wait for its acknowledgement without holding up the event loop."""
        self._require_usable()
        return await self._send_async(self._form.row(**message))

    def send_many(self, messages: pa.Table | pa.RecordBatch, mark: int | None = None) -> Future[Ack]:
        """Send many messages at once: one commit as they are given, behind all that was sent before.

        Columns are those of `send`; `key` and `type` must be there. A row in which one of them is NULL is no message:
        it goes into the depot as it is, and the batcher records it as rejected. The acknowledgement is that of the last
        row. `mark` is a number of your own that the log keeps with the commit: how far you are in what you read from,
        say. `position()` gives it back. Raises MessagesError, MessageRefused for a mark, and as `send`.
        """
        self._require_usable()
        table = pa.table(messages) if isinstance(messages, pa.RecordBatch) else messages
        if not isinstance(table, pa.Table) or not table.num_rows:
            raise MessagesError("there are no messages to send", "Give a table of Arrow with rows.")
        whole = conformed(table, self.producer_id, time.time_ns() // 1_000, self._payload)
        number = None if mark is None else required_number("mark", mark)
        return self._lane.send_many(whole, number, may_wait=not self._committer.is_own_thread())

"""`RawProducer`: send the bytes of a raw source to a raw depot as numbered chunks."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from windrow.errors import MessageRefused
from windrow.model import chunks
from windrow.producer.delivery import Ack
from windrow.producer.row import ChunkRow, required_number
from windrow.producer.sender import Sender, required_name


class RawProducer(Sender):
    """Sends the bytes of one raw source to a raw depot, each buffer as one chunk, in order.

    Records may span buffers. If a chunk is not committed, no later one is: all held chunks fail and the producer takes
    no more. Open it again and continue after `last_sequence()`. Otherwise it works like `Producer`.
    """

    def __init__(self, depot: str, source: str, *, keep: str = "90d", **settings: Any) -> None:
        """Open the raw depot, or create it with the retention `keep`.

        `settings` are those of `[producer]`. Raises SettingsError, TableRefused, TableUnreadable, ProducerInUse,
        MessageRefused for an invalid source name.
        """
        super().__init__(depot, required_name("source", source), chunks.RAW, keep, settings)
        self.source = source

    def send(
        self, buffer: bytes | bytearray | memoryview, *, last: bool = False, sequence: int | None = None
    ) -> Future[Ack]:
        """Send a buffer as the next chunk, and return the future of its acknowledgement with the chunk's number.

        The `last` chunk ends the source. With a `sequence`, the chunk is refused unless that is its number, so that
        nothing is sent twice after a chunk with an unknown outcome. Waits for room as `when_full` says. Raises
        MessageRefused, ProducerFull, ProducerFenced, ProducerClosed.
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
            raise MessageRefused(f"a {type(buffer).__name__} is not a bytes-like buffer", "Send bytes.")
        content = bytes(buffer)
        most = self._chosen.max_message_bytes
        if len(content) > most:
            raise MessageRefused(
                f"a buffer of {len(content):,} bytes is larger than max_message_bytes, {most:,}",
                "Nothing was sent. Send it in pieces; records may span pieces.",
            )
        number = None if sequence is None else required_number("sequence", sequence)
        return ChunkRow(self.source, number, content, bool(last), time.time_ns() // 1_000)

"""The producer of raw bytes: buffers of a raw source into a raw depot, numbered on the way."""

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
    """Sends the bytes of one raw source into a raw depot, each buffer as a chunk, in the order of sending.

    Where a buffer ends means nothing. When a chunk is not committed, none behind it is: all that is held fails, and the
    producer takes no more. Opened again, it goes on behind `last_sequence()`. For the rest it is as `Producer`.
    """

    def __init__(self, depot: str, source: str, *, keep: str = "90d", **settings: Any) -> None:
        """Open the raw depot, or make it with the retention `keep`.

        `settings` are those of `[producer]`. Raises SettingsError, TableRefused, TableUnreadable, ProducerInUse,
        MessageRefused for a source without a name.
        """
        super().__init__(depot, required_name("source", source), chunks.RAW, keep, settings)
        self.source = source

    def send(
        self, buffer: bytes | bytearray | memoryview, *, last: bool = False, sequence: int | None = None
    ) -> Future[Ack]:
        """Send a buffer as the next chunk, and return the future of its acknowledgement with the chunk's number.

        With the `last` one the source ends, and takes no more. With a `sequence` it is sent if that is its number, so
        that nothing comes twice where it is not known what became of a chunk. Waits for room as `when_full` says.
        Raises MessageRefused, ProducerFull, ProducerFenced, ProducerClosed.
        """
        return self._send(self._chunk(buffer, last, sequence))

    async def send_async(
        self, buffer: bytes | bytearray | memoryview, *, last: bool = False, sequence: int | None = None
    ) -> Ack:
        """Send a buffer as `send` does, and wait for its acknowledgement without holding up the event loop."""
        return await self._send_async(self._chunk(buffer, last, sequence))

    def finish(self) -> Future[Ack]:
        """End the source: its last chunk is an empty one."""
        return self.send(b"", last=True)

    @property
    def ended(self) -> bool:
        """Tell whether the last chunk of the source is in the depot."""
        return self.position().mark is not None

    def _chunk(self, buffer: object, last: bool, sequence: int | None) -> ChunkRow:
        if not isinstance(buffer, bytes | bytearray | memoryview):
            raise MessageRefused(f"a buffer of type {type(buffer).__name__} is no bytes", "Send bytes.")
        content = bytes(buffer)
        most = self._chosen.max_message_bytes
        if len(content) > most:
            raise MessageRefused(
                f"a buffer of {len(content):,} bytes is larger than max_message_bytes, {most:,}",
                "Nothing of it was sent. Send it in pieces: where one ends means nothing.",
            )
        number = None if sequence is None else required_number("sequence", sequence)
        return ChunkRow(self.source, number, content, bool(last), time.time_ns() // 1_000)

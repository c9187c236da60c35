"""A proxy that counts the requests to an object store, and can delay each of them as a network would.

It reads the head of each HTTP request and hands everything else on unchanged, so signatures stay valid. It is a process
of its own: delta-rs keeps Python's lock while it waits for some of its answers.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

LOOPBACK = "127.0.0.1"
HEAD_BYTES = 1 << 20
PIECE_BYTES = 1 << 16
LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """A request: its method, and the path that it reads, writes or, for `LIST`, lists."""

    method: str
    path: str

    @classmethod
    def of(cls, line: str) -> ProxiedRequest:
        """Return the request of the first line of its head."""
        method, target, _ = line.split(" ", 2)
        parts = urlsplit(target)
        query = parse_qs(parts.query)
        if method == "GET" and ("list-type" in query or "prefix" in query):
            return cls("LIST", f"{unquote(parts.path)}/{query.get('prefix', [''])[0]}")
        return cls(method, unquote(parts.path))


class CountingProxy:
    """Hands requests on to a port of this machine, each after `delay` seconds, until the block ends."""

    def __init__(self, upstream: int, delay: float = 0.0) -> None:
        """Remember where to and how fast."""
        command = [sys.executable, __file__, str(upstream), str(delay)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.port = 0

    def __enter__(self) -> Self:
        """Wait until it listens on a free port."""
        self.port = int(self._said())
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; open connections end too."""
        with self._process:
            self._process.kill()

    def taken(self) -> list[ProxiedRequest]:
        """Return the requests since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        return [ProxiedRequest.of(self._said()) for _ in range(int(self._said()))]

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def by_kind(requests: Iterable[ProxiedRequest]) -> dict[str, int]:
    """Return how many requests of each method there are."""
    return dict(sorted(Counter(request.method for request in requests).items()))


class _Server:
    def __init__(self, upstream: int, delay: float) -> None:
        self._upstream, self._delay, self._lines = upstream, delay, list[str]()

    async def run(self) -> None:
        """Print the port, and then, for each line of standard input, how many requests there were and their heads."""
        server = await asyncio.start_server(self._serve, LOOPBACK, 0, limit=HEAD_BYTES)
        _say([str(server.sockets[0].getsockname()[1])])
        while await asyncio.to_thread(sys.stdin.readline):
            lines, self._lines = self._lines, []
            _say([str(len(lines)), *lines])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(LOOPBACK, self._upstream)
        back = asyncio.ensure_future(_copy(answers, writer))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._hand_on(reader, requests)
        requests.close()
        await back

    async def _hand_on(self, reader: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
        """Count one request and hand it on with its body."""
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        self._lines.append(lines[0].decode())
        left = next((int(line[len(LENGTH) :]) for line in lines if line.lower().startswith(LENGTH)), 0)
        await asyncio.sleep(self._delay)
        requests.write(head)
        if b"transfer-encoding: chunked" in head.lower():
            await _hand_on_chunks(reader, requests)
        while left:
            piece = await reader.read(min(left, PIECE_BYTES))
            if not piece:
                raise ConnectionError
            requests.write(piece)
            await requests.drain()
            left -= len(piece)


async def _hand_on_chunks(reader: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
    """Hand on a body of unknown length: chunks with their sizes before them, the last one empty."""
    size = -1
    while size:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        requests.write(line + await reader.readexactly(size + 2))
        await requests.drain()


def _say(lines: list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(_Server(int(sys.argv[1]), float(sys.argv[2])).run())

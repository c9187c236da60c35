"""A store that fails: a proxy before an S3 server that delays, throttles and breaks requests, as a seed says.

Each request may

- be **delayed**, so that requests of several connections reach the server in another order;
- be **throttled**: answered 503 without reaching the server;
- be **dropped**: the connection ends before the server has it;
- **lose its reply**: the server does what it says, then the connection ends;
- **time out after it was applied**: the same, but with an answer of 500;
- have its answer **cut** in the middle, if it reads;
- get an **old listing**: without the object that comes last, such as the newest entry of a log.

The proxy is a process of its own, told by lines of standard input what to do from now on.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

LOOPBACK = "127.0.0.1"
HEAD_BYTES = 1 << 20
LONGEST_DELAY_SECONDS = 0.05
FAULTS = ("delayed", "throttled", "dropped", "lost", "timed out", "cut", "old listing")
LAST_OBJECT = re.compile(rb"<Contents>(?:(?!<Contents>).)*</Contents>(?!.*<Contents>)", re.DOTALL)
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
FAILED = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


class FailingStore:
    """Hands requests on to a port of this machine until the block ends; without faults until `fail` is called."""

    def __init__(self, upstream: int) -> None:
        command = [sys.executable, __file__, str(upstream)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.port = 0

    def __enter__(self) -> Self:
        """Wait until it listens on a free port."""
        self.port = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; open connections end too."""
        with self._process:
            self._process.kill()

    def fail(self, seed: int, share: float) -> None:
        """Let a share of the requests have a fault."""
        self._tell({"seed": seed, "share": share})

    def heal(self) -> dict[str, int]:
        """Hand everything on again, and return how often each fault struck since `fail`."""
        struck: dict[str, int] = self._tell({"seed": 0, "share": 0.0})
        return struck

    def _tell(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(order)}\n")
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer: its first line and headers, as they came, and its body."""

    head: bytes
    body: bytes

    @property
    def first(self) -> str:
        """Return the first line."""
        return self.head.split(b"\r\n", 1)[0].decode()

    @property
    def reads(self) -> bool:
        """Tell whether it is a request that reads or lists."""
        return self.first.startswith("GET ")

    @property
    def lists(self) -> bool:
        """Tell whether it is a request that lists."""
        return self.reads and "list-type" in self.first

    @classmethod
    async def read(cls, reader: asyncio.StreamReader, bodiless: bool = False) -> Message:
        """Read one; answers to HEAD and those of some kinds have no body, whatever their headers say."""
        head = await reader.readuntil(b"\r\n\r\n")
        lowered = head.lower()
        if bodiless or lowered.split(b" ", 2)[1] in (b"204", b"304"):
            return cls(head, b"")
        if b"transfer-encoding: chunked" in lowered:
            return cls(head, await _chunks(reader))
        lines = lowered.split(b"\r\n")
        size = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
        return cls(head, await reader.readexactly(size))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """Read a body of unknown length as it is: chunks with their sizes before them, the last one empty."""
    body, size = b"", -1
    while size:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        body += line + await reader.readexactly(size + 2)
    return body


class Fate(NamedTuple):
    """What happens to a request: a fault or None, and how long it waits before."""

    fault: str | None
    seconds: float


class Server:
    """Listens, and decides about each request."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._random, self._share = random.Random(0), 0.0
        self._struck = dict.fromkeys(FAULTS, 0)

    async def run(self) -> None:
        """Print the port, then obey lines of standard input, and answer each with what struck before."""
        server = await asyncio.start_server(self._serve, LOOPBACK, 0, limit=HEAD_BYTES)
        _say(server.sockets[0].getsockname()[1])
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            struck, self._struck = self._struck, dict.fromkeys(FAULTS, 0)
            self._random, self._share = random.Random(order["seed"]), order["share"]
            _say(struck)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection; a fault that ends it ends both of its sides."""
        answers, requests = await asyncio.open_connection(LOOPBACK, self._upstream, limit=HEAD_BYTES)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            try:
                while True:
                    request = await Message.read(reader)
                    writer.write(await self._answer(request, answers, requests))
                    await writer.drain()
            except _Cut as cut:
                writer.write(cut.half)
                await writer.drain()
        requests.close()
        writer.close()

    def _fate(self, request: Message) -> Fate:
        if self._random.random() >= self._share:
            return Fate(None, 0.0)
        needs = {"cut": request.reads, "old listing": request.lists}
        fault = self._random.choice([fault for fault in FAULTS if needs.get(fault, True)])
        self._struck[fault] += 1
        return Fate(fault, self._random.random() * LONGEST_DELAY_SECONDS)

    async def _answer(self, request: Message, answers: asyncio.StreamReader, requests: asyncio.StreamWriter) -> bytes:
        """Return the bytes of the answer. Raises ConnectionError where the connection has to end."""
        fault, seconds = self._fate(request)
        await asyncio.sleep(seconds)
        if fault == "throttled":
            return _answer(503, "Slow Down", SLOW_DOWN)
        if fault == "dropped":
            raise ConnectionError
        requests.write(request.head + request.body)
        await requests.drain()
        answer = await Message.read(answers, bodiless=request.first.startswith("HEAD "))
        if fault == "lost":
            raise ConnectionError
        if fault == "timed out":
            return _answer(500, "Internal Server Error", FAILED)
        if fault == "cut":
            raise _Cut(answer)
        if fault == "old listing":
            return _answer(200, "OK", LAST_OBJECT.sub(b"", answer.body))
        return answer.head + answer.body


class _Cut(ConnectionError):
    """Half of an answer, after which the connection ends."""

    def __init__(self, answer: Message) -> None:
        self.half = answer.head + answer.body[: len(answer.body) // 2]


def _answer(status: int, reason: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _say(answer: object) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(Server(int(sys.argv[1])).run())

"""A server that refuses every client without a certificate, with or without a reason, gently or not."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

RESET = struct.pack("ii", 1, 0)  # close() discards what is unsent, and sends RST


class RefusingServer:
    """Takes part in the handshake of TLS 1.3 until it misses the client's certificate, then closes the connection."""

    def __init__(self, context: ssl.SSLContext, *, tells: bool = True, resets: bool = False, after: float = 0) -> None:
        """Tell the reason if it `tells`, `after` some seconds, and close with RST if it `resets`."""
        self._context, self._tells, self._resets, self._after = context, tells, resets, after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.closed = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve one connection after the other in a block."""
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            yield
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.connections += 1
                self._refuse(connection)
            self.closed.set()

    def _refuse(self, connection: socket.socket) -> None:
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self._context.wrap_bio(received, to_send, server_side=True)
        while True:
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                connection.sendall(to_send.read())
                received.write(connection.recv(65_536))
            except ssl.SSLError:
                break
        time.sleep(self._after)
        if self._tells:
            connection.sendall(to_send.read())
        if self._resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

"""A server on a port of its own in a thread, and what asks it for pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from threading import Thread
from typing import NamedTuple
from urllib.parse import urlencode

from tests.report.parsed import ParsedPage
from windrow.ui import Server
from windrow.ui.views import LedgerView

SECRET = "a secret"


class Answer(NamedTuple):
    """A response: its status, headers and text."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def page(self) -> ParsedPage:
        """The page as a browser reads it."""
        return ParsedPage(self.text)


class Browsing:
    """Asks a server with the cookie of one who opened its address, from its own pages."""

    def __init__(self, server: Server) -> None:
        """Ask this server."""
        self.access = server.access
        self.own = {
            "Host": self.access.hosts[0],
            "Cookie": f"{self.access.cookie}={SECRET}",
            "Origin": f"http://{self.access.hosts[0]}",
        }

    def get(self, path: str, /, **asked: str) -> Answer:
        """Return the answer to a path with parameters."""
        return self.send("GET", f"{path}?{urlencode(asked)}" if asked else path)

    def post(self, path: str, /, **fields: str) -> Answer:
        """Send a form."""
        return self.send("POST", path, urlencode(fields))

    def send(self, method: str, path: str, body: str = "", /, **headers: str) -> Answer:
        """Send any request; a header that is empty is left out."""
        connection = HTTPConnection("127.0.0.1", self.access.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in (self.own | headers | {"Content-Length": str(len(body))}).items():
                if value:
                    connection.putheader(name, value)
            connection.endheaders(body.encode())
            response: HTTPResponse = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read().decode())
        finally:
            connection.close()


@contextmanager
def served(view: LedgerView, interval: float = 0, allow_changes: bool = False) -> Iterator[Browsing]:
    """Serve in the block, with pages that are read anew each time."""
    server = Server(view, 0, SECRET, interval, allow_changes)
    thread = Thread(target=server.run)
    thread.start()
    try:
        yield Browsing(server)
    finally:
        server.stop()
        thread.join()

"""`windrow ui`: it serves as long as it is told, and refuses what cannot work before it does."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.cli.conftest import Command


def test_duration(filled: Command) -> None:
    """It prints its address, and after its duration nothing listens there any more."""
    result = filled("ui", "--json", "--duration", "1s")
    address = urlsplit(result.json()["address"])
    assert (result.status, address.hostname) == (0, "127.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port), timeout=5)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--engine", "spurk"], "spurk"),
        (["--interval", "10ms"], "too short"),
        (["--duration", "long"], "--duration"),
    ],
)
def test_refused(windrow: Command, flags: list[str], says: str) -> None:
    """A server whose every page would be an error is not started."""
    result = windrow("ui", "--duration", "10s", *flags)
    assert (result.status, result.out) == (2, "")
    assert says in result.err

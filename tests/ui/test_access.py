"""Who may read and change: the secret, the host, the origin."""

from __future__ import annotations

import pytest

from windrow.ui.access import Access

READS, CHANGES = Access(8_765, "secret", allows_changes=False), Access(8_765, "secret", allows_changes=True)
COOKIE = {"windrow-8765": "secret"}
OWN = {"host": "127.0.0.1:8765", "origin": "http://127.0.0.1:8765"}


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765"])
def test_own(host: str) -> None:
    """Who has the secret reads, and changes from a page of the server, by each name of it."""
    own = {"host": host, "origin": f"http://{host}"}
    assert READS.refusal("GET", own, COOKIE) is None
    assert READS.refusal("GET", own, {}, "secret") is None
    assert CHANGES.refusal("POST", own, COOKIE) is None


@pytest.mark.parametrize("host", ["evil.example:8765", "127.0.0.1:8766", "127.0.0.1", ""])
def test_other_host(host: str) -> None:
    """A name that somebody else lets point to this machine is refused, with the secret too."""
    refused = READS.refusal("GET", {"host": host}, COOKIE, "secret")
    assert refused is not None
    assert refused.status == 421


@pytest.mark.parametrize(
    ("cookies", "secret"), [({}, ""), ({}, "other"), ({"windrow-8765": "other"}, ""), (COOKIE, "é")]
)
def test_no_secret(cookies: dict[str, str], secret: str) -> None:
    """Without the secret nothing is read."""
    refused = READS.refusal("GET", OWN, cookies, secret)
    assert refused is not None
    assert refused.status == 403


@pytest.mark.parametrize("origin", ["", "null", "https://evil.example", "http://127.0.0.1:9999", "http://localhost"])
def test_other_origin(origin: str) -> None:
    """A form of another page changes nothing, though the browser sends the cookie."""
    refused = CHANGES.refusal("POST", OWN | {"origin": origin}, COOKIE)
    assert refused is not None
    assert "does not come from a page of this server" in refused.message


def test_read_only() -> None:
    """Nothing is changed unless that is allowed."""
    refused = READS.refusal("POST", OWN, COOKIE)
    assert refused is not None
    assert "--allow-changes" in refused.hint

"""Who may read and change: those who know the secret, from pages of this server. Pure.

A request names the host that it was sent to. If an attacker's page uses its own name for 127.0.0.1, the request is
refused, even with the secret. A change must come from a page of this server: browsers say where a form was sent from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with no-referrer, a browser does not say where a form comes from
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused, in a sentence, and the HTTP status."""

    status: int
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """What a request needs: the secret, one of the server's own hosts, and for a change that changes are allowed."""

    port: int
    secret: str
    allows_changes: bool

    @property
    def hosts(self) -> tuple[str, str]:
        """The host names that the server answers to."""
        return f"127.0.0.1:{self.port}", f"localhost:{self.port}"

    @property
    def address(self) -> str:
        """The address to open."""
        return f"http://{self.hosts[0]}/?secret={self.secret}"

    @property
    def cookie(self) -> str:
        """The name of the cookie; cookies do not tell ports apart."""
        return f"windrow-{self.port}"

    def refusal(
        self, method: str, headers: Mapping[str, str], cookies: Mapping[str, str], secret: str = ""
    ) -> Refusal | None:
        """Return why a request is refused, None if it is allowed; `secret` is the one in its address."""
        host = headers.get("host", "")
        # guard: own-host
        if host not in self.hosts:
            return Refusal(421, f"this server is not {host or 'a server without a name'}", f"Open {self.hosts[0]}.")
        # guard: secret
        if not compare_digest((secret or cookies.get(self.cookie, "")).encode(), self.secret.encode()):
            return Refusal(403, "the address lacks the secret", "Open the address that `windrow ui` printed.")
        if method in {"GET", "HEAD"}:
            return None
        # guard: changes-allowed
        if not self.allows_changes:
            return Refusal(403, "this page is read-only", "Start `windrow ui` with --allow-changes.")
        # guard: own-origin
        if headers.get("origin") not in {f"http://{host}" for host in self.hosts}:
            return Refusal(403, "the request does not come from a page of this server", "Use the button on the page.")
        return None
